# tiny_llava.sh: small models of images and text, and their training by $tmp/run.yaml, for test
# scripts, which source it after run_lib.sh.
# shellcheck shell=bash disable=SC2015

# make_model CASE DIR: a golden model with a tokenizer. Tokens from 43 on are those around the tiles
# of SmolVLM.
make_model() {
    local id=2 c vocab='"<s>": 0, "</s>": 1' more='' model=$2
    mkdir -p "$model" && cp "tests/golden/$1/config.json" "tests/golden/$1/model.safetensors" "$model" || return 1
    for c in Ġ Ċ a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9 '?' ':' '.'; do vocab="$vocab, \"$c\": $id"; id=$((id + 1)); done
    for c in '<fake_token_around_image>' '<global-img>' '<row_1_col_1>' '<row_1_col_2>' '<row_2_col_1>' '<row_2_col_2>'; do more="$more, {\"id\": $id, \"content\": \"$c\", \"special\": true}"; id=$((id + 1)); done
    cat >"$model/tokenizer.json" <<END
{"version": "1.0", "added_tokens": [{"id": 0, "content": "<s>", "special": true}, {"id": 1, "content": "</s>", "special": true}, {"id": 60, "content": "<image>", "special": true}$more],
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "vocab": {$vocab}, "merges": []}}
END
    cat >"$model/tokenizer_config.json" <<'END'
{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<s>",
 "chat_template": "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'u:' + m['content'] + ' ' }}{% else %}{{ 'a:' + m['content'] + '</s>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"}
END
}

# make_internvl, make_gemma3, make_paligemma DIR: the same of other families, with the tokens around
# their images and their processors, which make images of 12 x 12 pixels.
make_internvl() {
    make_model internvl "$1" && sed -i 's/<fake_token_around_image>/<img>/; s/<global-img>/<\/img>/' "$1/tokenizer.json" || return 1
    echo '{"image_processor_type": "GotOcr2ImageProcessorFast", "size": {"height": 12, "width": 12}, "min_patches": 4, "max_patches": 4}' >"$1/preprocessor_config.json"
}
make_gemma3() {
    make_model gemma3_images "$1" && sed -i 's/<fake_token_around_image>/<start_of_image>/; s/<global-img>/<end_of_image>/' "$1/tokenizer.json" || return 1
    echo '{"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 12, "width": 12}}' >"$1/preprocessor_config.json"
}
make_paligemma() { make_model paligemma "$1" && echo '{"image_processor_type": "SiglipImageProcessor", "size": {"height": 12, "width": 12}}' >"$1/preprocessor_config.json"; }

# run OUT ARGUMENT...: trains into $tmp/OUT.
run() {
    local out=$1
    shift
    rm -rf "${tmp:?}/$out"
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/$out" $FLAGS "$@"
}
# resumed OUT ARGUMENT...
resumed() {
    local out=$1
    shift
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/$out" --resume $FLAGS "$@"
}
weights() { echo "$tmp/$1/model/model.safetensors"; }
# same_as OUT ARGUMENT...: the weights of $tmp/plain.
same_as() { expect 0 '' run "$@" && same "$(weights plain)" "$(weights "$1")"; }
