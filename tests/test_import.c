/*
 * test_import.c: the tables of other programs' keys, import.def and ignored.def:
 *
 *     rows      each names a key of ours that exists, and the values that a row can give by itself are allowed there
 *     ignored   no key without effect changes memory or results
 *     defaults  each key of the programs is known, and has the default of its program
 *     (golden/import.txt)
 *     programs  a file belongs to the program that knows most of its keys
 *
 * tests/run_config_from.sh tests what files become.
 */
#include "config/config_rows.h"
#include "import/import_rows.h"
#include "io/yaml.h"

#include "harness.h"

static bool is_simple(enum import_how how) { return how <= HOW_IF_TRUE; }

static bool is_only(enum import_how how) { return how == HOW_ONLY || how == HOW_ONLY_TRUE || how == HOW_ASK; }

TEST(test_keys)
{
    const import_rows *rows = import_all_rows();
    for (uint32_t i = 0; i < rows->n && rows->at[i].how != HOW_NONE; i++) { /* ignored.def comes last */
        const struct import_row *r = &rows->at[i];
        if (*r->ours && config_find(r->ours) < 0) fail_msg("%s: there is no key %s", r->key, r->ours);
        if ((is_simple(r->how) || r->how == HOW_ASK) && !*r->ours) fail_msg("%s: it has no key of ours", r->key);
        if ((r->how == HOW_ONLY || r->how == HOW_ONLY_TRUE) && *r->ours)
            fail_msg("%s: its key of ours is \"%s\"", r->key, r->ours);
        if ((r->how == HOW_ONLY || r->how == HOW_ONLY_TRUE || r->how == HOW_ASK || r->how == HOW_WORD ||
             r->how == HOW_IF_TRUE) &&
            !*r->detail)
            fail_msg("%s: no detail", r->key);
        if (*r->standard && !is_only(r->how) && strchr(r->key, '|'))
            fail_msg("%s: a default is that of one key", r->key);
        char keys[512], *rest = keys;
        assert_true(snprintf(keys, sizeof keys, "%s", r->key) < (int)sizeof keys);
        for (char *key; (key = strsep(&rest, "|"));) { /* the first row that has it is this one */
            const struct import_row *found = import_find(r->program, key);
            if (!found || strcmp(found->key, r->key)) fail_msg("%s of %s has two rows", key, import_name(r->program));
        }
    }
}

static void accepts(const struct import_row *r, const char *value)
{
    struct config c;
    struct error e = {0};
    config_init(&c);
    if (config_assign(&c, r->ours, value, &e)) fail_msg("%s of %s: %s", r->key, import_name(r->program), e.text);
    config_free(&c);
}

TEST(test_values)
{
    const import_rows *rows = import_all_rows();
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct import_row *r = &rows->at[i];
        if (r->how == HOW_VALUE && *r->standard) accepts(r, r->standard);
        if (r->how == HOW_IF_TRUE) accepts(r, r->detail);
        for (const char *s = r->detail; r->how == HOW_WORD && *s; s += strspn(s, " ")) {
            char word[64];
            if (sscanf(s, "%*[^= ]=%63[^ ]", word) != 1) fail_msg("%s: %s", r->key, s);
            accepts(r, word);
            s += strcspn(s, " ");
        }
    }
}

/* --- keys without effect ---------------------------------------------------------------------- */

/* The classes of reasons: a row with another one does not compile. */
enum class { RECORDS, FILES, PROCESSES, SPEED, PLANNED, EVALUATION, INFERENCE, ORDER, SAME, METHOD };
static const struct {
    enum class class;
    const char *text;
} reasons[] = {
#define IGNORED(class, text, keys) {class, text},
#include "import/ignored.def"
};

static enum class class_of(const struct import_row *r)
{
    for (size_t i = 0; i < COUNT(reasons); i++)
        if (!strcmp(reasons[i].text, r->detail)) return reasons[i].class;
    fail_msg("%s has no reason", r->key);
    return SAME;
}

/* Words in names of keys that change memory or results in some program. */
static const char *const telling[] = {
    "offload", "shard", "fsdp", "parallel", "partition", "tp_size", "quant", "dtype", "precision", "fp8", "fp16",
    "bf16", "4bit", "8bit", "bits", "checkpointing", "recompute", "freeze", "trainable", "dropout", "noise",
    "smoothing", "seed", "learning", "_lr", "lr_", "decay", "warmup", "momentum", "beta", "_eps", "clip",
    "batch_size", "accumulation", "num_samples", "max_samples", "template", "length", "max_len", "maxlen", "pixels",
    "resolution", "loss", "adapter", "lora", "rope", "vocab", "token", "mask", "sampler", "shuffle", "epoch",
    "steps", "stage", "stream", "dataset", "image", "weight", "grad",
};

/* Keys with such a word that change neither, and why. */
static const struct {
    const char *key, *why;
} harmless[] = {
    {"zero_optimization.stage3_*", "which blocks are gathered at once, and how a model is saved"},
    {"zero_optimization.offload_optimizer.super_offload", "where a CPU's update runs"},
    {"zero_optimization.cpu_offload_use_pin_memory", "how host memory is allocated"},
    {"zero_optimization.legacy_stage1", "another program for the same division"},
    {"zero_optimization.gather_*", "how a model is saved"},
    {"zero_optimization.load_from_fp32_weights", "how a checkpoint is loaded"},
    {"deepspeed_config.offload_*_nvme_path", "a device nvme is refused"},
    {"fsdp_config.cpu_offload_pin_memory", "how host memory is allocated"},
    {"fsdp_cpu_offload_pin_memory", "how host memory is allocated"},
    {"parallelism_config*_dp_shard_size", "all ranks: replicas of groups are refused"},
    {"parallelism_config*_cp_*", "parallel sequences are refused"},
    {"parallelism_config*_sp_*", "parallel sequences are refused"},
    {"use_parallelism_config", "its members are read"},
    {"contiguous_gradients", "where gradients lie"},
    {"offload_folder", "where weights lie for inference"},
    {"liger_rope", "a fused kernel"},
    {"lora_fan_in_fan_out", "PEFT finds it from the weights too"},
    {"is_binary_loss_scale", "found from loss_scale"},
    {"use_fast_tokenizer", "the same ids"},
    {"preprocessing_batch_size", "samples that become tokens at once"},
    {"skip_prepare_dataset", "when text becomes tokens"},
    {"to_cached_dataset", "a command that only makes tokens"},
    {"val_dataset_shuffle", "the order of an evaluation"},
    {"push_dataset_to_hub", "what is uploaded"},
    {"hf_use_auth_token", "what may be downloaded"},
    {"dynamic_checkpoint", "when a checkpoint is saved"},
    {"fp16.auto_cast", "casts the inputs, which the plan does"},
    {"gradient_checkpointing_kwargs", "reentrant or not: the same numbers"},
    {"activation_checkpointing_kwargs", "reentrant or not: the same numbers"},
    {"use_reentrant_gc", "reentrant or not: the same numbers"},
    {"bnb_4bit_compute_dtype", "the dtype of products is memory.precision, which other keys decide"},
    {"bnb_4bit_quant_storage", "how the same bits lie in a tensor"},
    {"bnb_config_kwargs.bnb_4bit_compute_dtype", "the dtype of products is memory.precision, which other keys decide"},
    {"bnb_config_kwargs.bnb_4bit_quant_storage", "how the same bits lie in a tensor"},
    {"compute_dtype", "LLaMA-Factory fills it in from bf16 and fp16"},
    {"data_types.param_dtype", "DeepSpeed's dtype of parameters while it loads them"},
    {"data_types.buffer_dtype", "DeepSpeed's dtype of buffers while it loads them"},
    {"data_seed", "another random order"},
    {"group_by_modality_length", "another random order"},
    {"group_by_length", "another random order"},
    {"length_column_name", "the column that group_by_length reads"},
    {"sortish_sampler", "another random order"},
    {"shuffle_dataset", "shuffled before an epoch that is shuffled"},
    {"shuffle_buffer_size", "how a stream is shuffled"},
    {"shuffle_before_merging_datasets", "shuffled before an epoch that is shuffled"},
    {"streaming", "read as a stream or not: the same samples"},
    {"dataset_streaming", "read as a stream or not: the same samples"},
    {"streaming_multipack_buffer_size", "how a stream is packed"},
    {"stream", "prints answers as they come"},
    {"accelerator_config.gradient_accumulation_kwargs", "when ranks exchange gradients, not which"},
    {"managed_gradient_accumulation", "who counts the micro-batches"},
    {"accelerator_config.use_seedable_sampler", "another random order"},
    {"torch_empty_cache_steps", "when PyTorch gives memory back"},
    {"gc_steps", "when Python gives memory back"},
    {"gc_collect_steps", "when Python gives memory back"},
    {"ds3_gather_for_generation", "where weights lie while a model answers"},
    {"qlora_sharded_model_loading", "how weights are loaded"},
    {"lora_on_cpu", "where an adapter is merged"},
    {"fsdp_min_num_params", "which blocks FSDP gathers at once"},
    {"fsdp_transformer_layer_cls_to_wrap", "which blocks FSDP gathers at once"},
    {"fsdp_version", "which FSDP divides"},
    {"fsdp_final_state_dict_type", "how the model is saved"},
    {"max_shard_size", "the size of files"},
    {"num_dataset_shards_to_save", "the number of files of prepared data"},
    {"tiled_mlp_num_shards", "the MLP in chunks of rows: the same numbers"},
    {"tokenizer_legacy", "the tokenizer of the folder is used, with the ids of its own library"},
    {"embeddings_skip_upcast", "embeddings are kept in f32 here"},
    {"pretrain_multipack_attn", "no token of a packed row sees another text"},
    {"pad_token", "padding has no loss and is not attended to"},
    {"pad_to_sequence_len", "padding has no loss and is not attended to"},
    {"split_special_tokens", "text of the data never becomes a special token"},
    {"tokenized_path", "where tokens are kept"},
    {"total_num_tokens", "a count that Axolotl fills in"},
    {"total_supervised_tokens", "a count that Axolotl fills in"},
    {"router_aux_loss_coef", "a loss of routers exists only with output_router_logits, which is refused"},
    {"moe_aux_loss_coef", "a loss of routers exists only with output_router_logits, which is refused"},
    {"quantize_moe_experts", "models with experts do not exist here"},
    {"lora_mlp_kernel", "a fused kernel"},
    {"lora_qkv_kernel", "a fused kernel"},
    {"lora_o_kernel", "a fused kernel"},
    {"lora_embedding_kernel", "a fused kernel"},
    {"chunked_cross_entropy", "the loss in chunks: the same numbers"},
    {"bf16.immediate_grad_update", "when gradients are converted"},
    {"bf16.check_grad_overflow", "a step with infinite gradients is skipped in any case"},
    {"optimizer.params.set_grad_none", "how gradients are cleared"},
    {"prescale_gradients", "divided before or after the sum"},
    {"gradient_predivide_factor", "divided before or after the sum"},
    {"sparse_gradients", "how gradients of embeddings are exchanged"},
    {"use_data_before_expert_parallelism", "models with experts do not exist here"},
    {"zero_optimization.contiguous_gradients", "where gradients lie"},
    {"zero_optimization.round_robin_gradients", "the order in which gradients are copied"},
    {"zero_optimization.allgather_partitions", "how weights are exchanged"},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", "Muon is refused"},
    {"activation_checkpointing.synchronize_checkpoint_boundary", "when the GPU waits"},
    {"wandb_log_model", "what is uploaded"},
    {"merge_lora", "what happens after training"},
    {"lora_weight_path", "the scripts that have it do not read it"},
    {"lazy_preprocess", "when text becomes tokens"},
    {"lazy_tokenize", "when text becomes tokens"},
    {"processor_kwargs", "settings of the image processor; those of the model's folder are used"},
    {"device_map", "where a loader puts weights"},
    {"quantization_device_map", "where a loader puts weights"},
    {"image_max_pixels", "images are resized once"},
    {"image_min_pixels", "images are resized once"},
    {"image_resolution", "images are resized once"},
    {"video_max_pixels", "images are resized once"},
    {"video_min_pixels", "images are resized once"},
    {"image_do_pan_and_scan", "of models that do not exist here (Gemma 3)"},
    {"data_parallel_group", "which ranks are data parallel: all of them"},
    {"model_kwargs", "arguments of a loader"},
};

/* What of another program stays in its files, its dataset's place, or is a whole map of such
 * keys. */
static bool is_place(const char *key)
{
    static const char *const places[] = {"dataset_",      "datasets",        "dataset",        "hub",
                                         "logging_steps", "tokenizer_",      "trackio",        "use_auth_token",
                                         "token",         "overwrite_cache", "sample_packing_"};
    for (size_t i = 0; i < COUNT(places); i++)
        if (!strncmp(key, places[i], strlen(places[i]))) return true;
    return strstr(key, "_token") && strstr(key, "hub");
}

static bool is_harmless(const char *key)
{
    for (size_t i = 0; i < COUNT(harmless); i++)
        if (pattern_match(harmless[i].key, key)) return true;
    return false;
}

/* Records, evaluation and inference come after the step; a method is off. */
static bool is_apart(enum class class)
{
    return class == RECORDS || class == EVALUATION || class == INFERENCE || class == METHOD;
}

static void check_ignored(const struct import_row *list, const char *key)
{
    const struct import_row *r = import_find(list->program, key);
    if (!r || r->how != HOW_NONE)
        fail_msg("%s of %s is without effect and has a row", key, import_name(list->program));
    if (is_apart(class_of(list)) || *import_refused(list->program)) return;
    const char *dot = strrchr(key, '.'), *name = dot ? dot + 1 : key; /* a section has rows of its own */
    for (size_t i = 0; i < 2; i++) { /* sections of a command line */
        const char *section = i ? "parallelism_config_" : "fsdp_";
        if (!strncmp(name, section, strlen(section))) name += strlen(section);
    }
    for (size_t i = 0; i < COUNT(telling); i++)
        if (strstr(name, telling[i]) && !is_harmless(key) && !is_place(key))
            fail_msg("%s of %s is without effect, and \"%s\" tells of memory or results: map it, refuse it or ask; or "
                     "say in this test why it changes neither",
                     key, import_name(list->program), telling[i]);
}

TEST(test_ignored)
{
    const import_rows *rows = import_all_rows();
    int keys = 0;
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct import_row *list = &rows->at[i];
        if (list->how != HOW_NONE) continue;
        for (const char *s = list->key; *s; keys++) {
            char key[128];
            const size_t n = strcspn(s, "|");
            const bool all = s[n - 1] == '*';
            if (all && !is_apart(class_of(list))) fail_msg("%s: not all keys that begin so may be without effect", s);
            snprintf(key, sizeof key, "%.*s%s", (int)n - all, s, all ? "x" : "");
            check_ignored(list, key);
            s += n + (s[n] == '|');
        }
        if (class_of(list) != METHOD) continue;
        const char *method = strrchr(list->detail, ' ') + 1;
        const struct import_row *r = import_find(list->program, method);
        if (!r || r->how == HOW_NONE)
            fail_msg("%s: nothing refuses or reads %s of %s", list->key, method, import_name(list->program));
    }
    assert_true(keys > 500);
    for (size_t i = 0; i < COUNT(harmless) && !strchr(harmless[i].key, '*');
         i++) { /* no line of the list is out of date */
        bool found = false;
        for (enum import_program p = 0; p < IMPORT_PROGRAMS && !found; p++) {
            const struct import_row *r = import_find(p, harmless[i].key);
            found = r && r->how == HOW_NONE;
        }
        if (!found) fail_msg("%s is not among the keys without effect", harmless[i].key);
    }
}

/* --- defaults --------------------------------------------------------------------------------- */

static const char *const ids[] = {
#define PROGRAM(id, ...) #id,
#include "import/import.def"
};

/* Defaults that no row has: code puts them together, or they mean the same as nothing. */
static const struct {
    const char *program, *key, *standard, *why;
} elsewhere[] = {
    {"hf", "output_dir", "-", "trainer_output, unless a file says otherwise"},
    {"hf", "max_steps", "-1", "not above 0: epochs"},
    {"hf", "gradient_checkpointing", "-", "none is false"},
    {"hf", "save_total_limit", "-", "all are kept"},
    {"hf", "average_tokens_across_devices", "true", "the loss is divided by the tokens of the whole step"},
    {"hf", "train_sampling_strategy", "random", "data.shuffle is true"},
    {"lf", "ray_num_workers", "1", "only with Ray"},
    {"swift", "target_modules", "[\"all-linear\"]", "all-linear"},
    {"swift", "init_weights", "true", "adapter.init_lora_weights is true"},
    {"swift", "train_dataloader_shuffle", "true", "data.shuffle is true"},
    {"swift", "tuner_type", "-", "lora, of the arguments of all commands"},
    {"trl", "bf16", "-", "true unless fp16 is"},
    {"trl", "dtype", "float32", "weights are loaded in f32"},
    {"trl", "truncation_mode", "keep_start", "data.too_long"},
    {"lf", "packing", "-", "false, and true for stage pt"},
    {"lf", "video_fps", "2.0", "of videos, which need data.max_frames"},
    {"lf", "video_maxlen", "128", "of videos, which need data.max_frames"},
    {"llava", "version", "v0", "data.template is asked for by a file that names a version"},
    {"llava", "bits", "16", "not quantized"},
    {"llava", "mm_vision_select_layer", "-1", "of the model's folder"},
    {"llava", "mm_projector_type", "linear", "of the model's folder"},
    {"llava", "mm_use_im_start_end", "false", "of the model's folder"},
    {"llava", "mm_use_im_patch_token", "true", "of the model's folder"},
    {"llava", "mm_patch_merge_type", "flat", "of the model's folder"},
    {"llava", "mm_vision_select_feature", "patch", "of the model's folder"},
    {"llava", "image_aspect_ratio", "square", "of the model's folder"},
    {"llava", "model_name_or_path", "facebook/opt-125m", "model.path must be given"},
    {"swift", "torch_dtype", "-", "that of config.json, taken as bfloat16"},
    {"swift", "truncation_strategy", "-", "delete, for training"},
    {"swift", "output_dir", "-", "output"},
    {"swift", "dataloader_num_workers", "-", "1"},
    {"swift", "fp16", "-", "torch_dtype decides"},
    {"swift", "bf16", "-", "torch_dtype decides"},
    {"swift", "eval_strategy", "-", "as save_strategy, where there are validation data"},
    {"swift", "use_chat_template", "-", "true"},
    {"axolotl", "excess_length_strategy", "-", "drop"},
    {"axolotl", "sample_packing", "-", "false"},
    {"axolotl", "warmup_ratio", "-", "0.03 of the run"},
    {"axolotl", "adam_beta1", "-", "Trainer's 0.9"},
    {"axolotl", "adam_beta2", "-", "Trainer's 0.999"},
    {"axolotl", "adam_epsilon", "-", "Trainer's 1e-8"},
    {"axolotl", "max_grad_norm", "-", "Trainer's 1"},
    {"axolotl", "seed", "-", "42"},
    {"axolotl", "save_strategy", "-", "epoch"},
    {"axolotl", "save_total_limit", "-", "4"},
    {"axolotl", "tf32", "auto", "of products in f32"},
    {"axolotl", "shuffle_merged_datasets", "true", "data.shuffle is true"},
    {"peft", "target_modules", "-", "PEFT's choice for most language models"},
    {"peft", "init_lora_weights", "true", "adapter.init_lora_weights is true"},
    {"peft", "peft_type", "-", "LORA, which the class sets"},
    {"ds", "optimizer.params.lr", "0.001", "schedule_facts.c, where a file has an optimizer"},
    {"ds", "optimizer.params.betas", "[0.9,0.999]", "schedule_facts.c"},
    {"ds", "optimizer.params.eps", "1e-08", "schedule_facts.c"},
    {"ds", "scheduler.params.warmup_max_lr", "0.001", "schedule_facts.c, where a file has a scheduler"},
    {"ds", "scheduler.params.warmup_num_steps", "1000", "schedule_facts.c"},
    {"ds", "scheduler.params.warmup_type", "log", "schedule_facts.c"},
    {"ds", "scheduler.params.cos_min_ratio", "0.0001", "schedule_facts.c"},
    {"ds", "zero_optimization.mics_shard_size", "-1", "all ranks"},
};

static bool same_text(const char *a, const char *b)
{
    char *end_a, *end_b;
    const double x = strtod(a, &end_a), y = strtod(b, &end_b);
    return (*a && *b && !*end_a && !*end_b) ? x == y : !strcmp(a, b);
}

static bool is_elsewhere(const char *program, const char *key, const char *found)
{
    for (size_t i = 0; i < COUNT(elsewhere); i++)
        if (!strcmp(elsewhere[i].program, program) && !strcmp(elsewhere[i].key, key))
            return same_text(elsewhere[i].standard, found);
    return false;
}

/* Whether a default is what a row says, or means nothing and the row has none. */
static bool agrees(const struct import_row *r, const char *found)
{
    struct bump b = {0};
    const bool off = !strcmp(found, "-") || import_off(yaml_scalar(&b, found));
    const bool listed =
        (r->how == HOW_ONLY || r->how == HOW_ASK) && *r->standard && config_word_index(r->standard, found) >= 0;
    bump_free(&b);
    if (r->how == HOW_NONE || listed || same_text(r->standard, found)) return true;
    if (r->how == HOW_ONLY_TRUE) return !strcmp(found, "true") || off;
    if (r->how == HOW_ONLY || r->how == HOW_ASK) return off;
    return off &&
           (!*r->standard || !strcmp(r->standard, "false") || !strcmp(r->standard, "0") || !strcmp(r->standard, "no"));
}

/* Every key of the programs is known, and has the default that it has there. */
TEST(test_defaults)
{
    char program[32], key[128], found[256];
    int keys = 0;
    FILE *f = fopen("tests/golden/import.txt", "r");
    if (!f) skip(); /* run from the repository's root */
    for (; fscanf(f, "%31s %127s %255s", program, key, found) == 3; keys++) {
        size_t p = 0;
        while (p < COUNT(ids) && strcmp(ids[p], program)) p++;
        assert_true(p < COUNT(ids));
        const struct import_row *r = import_find((enum import_program)p, key);
        char inside[160];
        snprintf(inside, sizeof inside, "%s.", key);
        if (!r && import_in_section((enum import_program)p, inside)) continue;
        if (!r) fail_msg("%s of %s is not known", key, program);
        if (strcmp(found, "?") && !is_elsewhere(program, key, found) && !agrees(r, found))
            fail_msg("%s of %s has the default %s, and %s has \"%s\"", key, program, found, r->key, r->standard);
    }
    fclose(f);
    assert_true(keys > 1000);
}

/* Reads a text as a file; the list of what it sets is in `out`. */
static int read_file(const char *text, const char *name, struct text *out, struct error *e)
{
    struct import f = {0};
    struct config c;
    config_init(&c);
    int rc = import_read_text(&f, text, strlen(text), name, e);
    if (!rc) rc = import_apply(&f, &c, e);
    if (!rc) rc = import_settle(&f, &c, e);
    out->n = 0;
    if (!rc) import_print(&f, &c, out);
    import_free(&f);
    config_free(&c);
    return rc;
}

/* Appends the lines of a list that are defaults, without blanks. */
static void keep_defaults(const char *list, struct text *out)
{
    for (const char *line = list; *line;) {
        const char *end = line + strcspn(line, "\n"), *from = strstr(line, "default of");
        if (from && from < end)
            for (const char *s = line + strspn(line, " "); s < end && *s != '('; s++)
                if (*s != ' ') text_append(out, s, 1);
        if (from && from < end) text_printf(out, "\n");
        line = end + (*end == '\n');
    }
}

/* What the smallest file of each program becomes: its defaults. */
TEST(test_smallest)
{
    static const struct {
        const char *name, *text, *defaults;
    } cases[] = {
        {"hf.yaml", "{max_grad_norm: 1, adam_beta1: 0.9}",
         "train.epochs=3\ntrain.learning_rate=5e-05\ntrain.schedule=linear\ntrain.weight_decay=0\ntrain.beta2=0."
         "999\ntrain.eps=1e-08\ntrain.seed=42\ntrain.save_every=500\n"
         "train.keep=1000000\ntrain.out=trainer_output\nmemory.precision=f32\nmemory.optimizer=adamw\n"},
        {"trl.yaml", "{packing: false, max_grad_norm: 1, adam_beta1: 0.9, use_peft: true}",
         "adapter.r=16\nadapter.lora_alpha=32\nadapter.lora_dropout=0.05\ndata.sequence=1024\ndata.train_on=all\ntrain."
         "epochs=3\ntrain.learning_rate=2e-05\ntrain.schedule=linear\ntrain.weight_decay=0\n"
         "train.beta2=0.999\ntrain.eps=1e-08\ntrain.seed=42\ntrain.save_every=500\ntrain.keep=1000000\ntrain.out="
         "trainer_output\nmemory.precision=bf16\nmemory.optimizer=adamw\nmemory.recompute=all\n"},
        {"lf.yaml", "{stage: sft, val_size: 0}",
         "adapter.target_modules=all-linear\nadapter.exclude_modules=\"\nadapter.r=8\nadapter.lora_alpha=16\nadapter."
         "lora_dropout=0\ndata.sequence=2048\ndata.packing=false\ntrain.epochs=3\n"
         "train.learning_rate=5e-05\ntrain.schedule=linear\ntrain.weight_decay=0\ntrain.beta1=0.9\ntrain.beta2=0."
         "999\ntrain.eps=1e-08\ntrain.clip_norm=1\ntrain.seed=42\ntrain.save_every=500\n"
         "train.keep=1000000\ntrain.out=trainer_output\nmemory.precision=f32\nmemory.optimizer=adamw\nmemory.recompute="
         "all\n"},
        {"llava.yaml", "{version: v1, group_by_modality_length: true, fp16: true}",
         "model.freeze=[vision_tower]\ndata.sequence=512\ntrain.epochs=3\ntrain.learning_rate=5e-05\ntrain.schedule="
         "linear\ntrain.weight_decay=0\ntrain.beta1=0.9\ntrain.beta2=0.999\ntrain.eps=1e-08\n"
         "train.clip_norm=1\ntrain.seed=42\ntrain.save_every=500\ntrain.keep=1000000\ntrain.out=trainer_output\nmemory."
         "optimizer=adamw\n"},
        {"swift.sh", "swift sft --model m --tuner_type full --max_length 64\n",
         "model.freeze=[vision_tower,projector]\ndata.train_on=assistant\ndata.packing=false\ndata.too_long=drop\ndata."
         "threads=1\ntrain.epochs=3\ntrain.learning_rate=1e-05\ntrain.schedule=cosine\n"
         "train.weight_decay=0.1\ntrain.beta1=0.9\ntrain.beta2=0.95\ntrain.eps=1e-08\ntrain.clip_norm=1\ntrain.seed="
         "42\ntrain.save_every=500\ntrain.keep=1000000\ntrain.out=output\nmemory.optimizer=adamw\n"
         "memory.recompute=all\n"},
        {"axolotl.yaml",
         "{base_model: m, sequence_len: 64, learning_rate: 1e-4, adapter: lora, lora_r: 8, lora_alpha: 8}",
         "adapter.lora_dropout=0\ndata.packing=false\ndata.too_long=drop\ntrain.epochs=1\ntrain.schedule=cosine\ntrain."
         "warmup_ratio=0.03\ntrain.weight_decay=0\ntrain.beta1=0.9\ntrain.beta2=0.999\ntrain.eps=1e-08\n"
         "train.clip_norm=1\ntrain.seed=42\ntrain.keep=4\ntrain.out=\"./"
         "model-out\"\nmemory.precision=auto\nmemory.optimizer=adamw\n"},
        {"ds.json", "{\"optimizer\": {\"type\": \"Adam\"}, \"train_micro_batch_size_per_gpu\": 1}",
         "train.learning_rate=0.001\ntrain.weight_decay=0\ntrain.beta1=0.9\ntrain.beta2=0.999\ntrain.eps=1e-08\ntrain."
         "clip_norm=1\nmemory.precision=f32\n"},
        {"scheduler.json",
         "{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 5000}}, \"fp16\": "
         "{\"enabled\": true}}",
         "train.learning_rate=0.001\ntrain.warmup_steps=1000\ntrain.warmup_shape=log\ntrain.clip_norm=1\ntrain.loss_"
         "scale=65536\ntrain.scale_window=1000\n"},
        {"cosine.json",
         "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 5000, \"warmup_num_steps\": "
         "10}}, \"bf16\": {\"enabled\": true}}",
         "train.min_lr_rate=0.0001\ntrain.warmup_shape=log\ntrain.clip_norm=1\n"},
        {"torch.json",
         "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"torch_adam\": true, \"lr\": 1, \"eps\": 1e-6}}, "
         "\"gradient_clipping\": 0}",
         "train.weight_decay=0.01\ntrain.beta1=0.9\ntrain.beta2=0.999\nmemory.precision=f32\n"},
        {"peft.json", "{\"peft_type\": \"LORA\", \"task_type\": \"CAUSAL_LM\"}",
         "adapter.target_modules=[q_proj,v_proj]\nadapter.r=8\nadapter.lora_alpha=8\nadapter.lora_dropout=0\nadapter."
         "bias=none\n"},
        {"script.yaml", "{optimizer: sgd, batch_size: 2}", "train.weight_decay=0\ntrain.momentum=0\n"},
        {"accelerate.yaml", "{mixed_precision: bf16, num_processes: 2}", ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct text list = {0}, found = {0};
        struct error e = {0};
        if (read_file(cases[i].text, cases[i].name, &list, &e)) fail_msg("%s: %s", cases[i].name, e.text);
        keep_defaults(list.at, &found);
        if (strcmp(found.n ? found.at : "", cases[i].defaults))
            fail_msg("%s: found\n%s\nexpected\n%s", cases[i].name, found.n ? found.at : "", cases[i].defaults);
        text_free(&list);
        text_free(&found);
    }
}

/* --- programs --------------------------------------------------------------------------------- */

/* A file belongs to the program that knows most of its keys. */
TEST(test_programs)
{
    static const struct {
        const char *text, *program;
    } cases[] = {
        {"{output_dir: a, bf16: true}", "Hugging Face TrainingArguments"},
        {"{output_dir: a, bf16: true, max_length: 8, packing: true}", "TRL"},
        {"{stage: sft, template: a, packing: true, max_length: 8}", "LLaMA-Factory"},
        {"{version: v1, image_folder: a, mm_projector_type: mlp2x_gelu, bf16: true}", "LLaVA"},
        {"{base_model: a, sequence_len: 8, micro_batch_size: 1, datasets: [{path: a, type: alpaca}]}", "Axolotl"},
        {"{fp16: {enabled: true}}", "DeepSpeed"},
        {"{mixed_precision: 'no', num_processes: 2}", "Accelerate"},
        {"{r: 8, target_modules: [q_proj], peft_type: LORA}", "a LoraConfig of PEFT"},
        {"{training: {batch_size: 4, lr: 1e-4}}", "a PyTorch training script"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct import f = {0};
        struct error e = {0};
        if (import_read_text(&f, cases[i].text, strlen(cases[i].text), "a.yaml", &e)) fail_msg("%s", e.text);
        assert_int_equal(f.files.n, 1);
        assert_string_equal(f.files.at[0].program, cases[i].program);
        import_free(&f);
    }
}

/* Calls and dictionaries in Python's notation, and what is no data. */
TEST(test_python)
{
    struct text list = {0};
    struct error e = {0};
    assert_int_equal(read_file("lr = 2e-4\nargs = TrainingArguments(output_dir='out', learning_rate=lr, fp16=False,)\n",
                               "a", &list, &e),
                     0);
    assert_non_null(strstr(list.at, "train.learning_rate = 0.0002"));
    assert_int_equal(read_file("config = {\n 'batch_size': 2, 'checkpoint_ratio': 0.5, 'subsample_strategy': "
                               "'quality', 'shuffle': False}\n",
                               "a", &list, &e),
                     0);
    assert_non_null(strstr(list.at, "memory.recompute = \"ratio:0.5\""));
    assert_non_null(strstr(list.at, "data.strategy = quality"));
    assert_non_null(strstr(list.at, "data.shuffle = false"));
    assert_int_equal(read_file("y = checkpoint_sequential(blocks, segments=4, input=x)\n", "a.py", &list, &e),
                     PL_USAGE);
    assert_non_null(strstr(e.text, "a.py:1: unknown key input"));
    assert_int_equal(read_file("y = checkpoint_sequential(blocks, segments=4)\n", "a.py", &list, &e), 0);
    assert_non_null(strstr(list.at, "memory.recompute = \"segments:4\""));
    static const char *const bad[] = {"x = {'a': ",
                                      "x = f(a=1",
                                      "x = [1, 2",
                                      "x = f(a=b + 1)",
                                      "x = 'a",
                                      "def f(): pass",
                                      "y = checkpoint_sequential(f, 4, x)",
                                      "LoraConfig(16)",
                                      "x = {1: 2}",
                                      "x = f(a=1 b=2)",
                                      "x = ((((((((((((((((((((((((((((((((((((1,"};
    for (size_t i = 0; i < COUNT(bad); i++) assert_int_equal(read_file(bad[i], "a.py", &list, &e), PL_USAGE);
    text_free(&list);
}

MAIN(NULL, NULL)
