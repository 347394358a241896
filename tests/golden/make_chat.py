#!/usr/bin/env python3
"""Makes tests/golden/chat: a small Llama with a byte-level tokenizer and a chat template, conversations, and
the ids and labels that transformers gives them.

    python3 tests/golden/make_chat.py          from the repository's root; needs torch, transformers, tokenizers

    model/             config.json, weights, tokenizer.json, tokenizer_config.json with a ChatML template
    generation.jinja   the same template with {% generation %} around what the assistant says
    thinking.jinja     a template that drops the thoughts of earlier answers
    chats.jsonl        conversations, OpenAI messages
    expected.jsonl     for each: {"ids", "labels"} of the model's template by the rule of prefixes,
                       {"marked": labels by {% generation %}: transformers' assistant mask}; labels are -100
                       where nothing is trained

No token of the conversations crosses the border of an answer, which the script checks; make_labels.py has such tokens.
"""
import json, pathlib, random

import tokenizers, torch, transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

here = pathlib.Path("tests/golden/chat")
folder = here / "model"
folder.mkdir(parents=True, exist_ok=True)

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{{- message['content'] + '<|im_end|>' }}
{%- else %}
{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
MARKED = CHATML.replace(
    "{{- message['content'] + '<|im_end|>' }}\n{%- else %}",
    "{%- generation -%}{{- message['content'] + '<|im_end|>' }}{%- endgeneration -%}\n{%- else %}", 1)
THINKING = CHATML.replace(
    "{{- message['content'] + '<|im_end|>' }}\n{%- else %}",
    "{{- (message['content'] if loop.last else message['content'].split('</think>')[-1]) + '<|im_end|>' }}\n{%- else %}", 1)

# --- conversations -----------------------------------------------------------------------------

random.seed(1)
words = "the cat sat on a mat and saw seven small red birds near an old stone house".split()


def phrase(n):
    return " ".join(random.choice(words) for _ in range(n))


chats = []
for i in range(24):
    messages = [{"role": "system", "content": "You are kind."}] if i % 5 == 0 else []
    for _ in range(1 + i % 3):
        messages.append({"role": "user", "content": phrase(2 + i % 7) + "?"})
        messages.append({"role": "assistant", "content": phrase(1 + i % 5).capitalize() + "."})
    chats.append(messages)
chats.append([{"role": "user", "content": "Say <|im_end|> aloud: é 漢字 \U0001f642"}, {"role": "assistant", "content": "<|im_end|> é 漢字 \U0001f642\nDone."}])
chats.append([{"role": "user", "content": "  blanks  "}, {"role": "assistant", "content": "a\n\n  b\t"}])
(here / "chats.jsonl").write_text("".join(json.dumps({"messages": m}, ensure_ascii=i % 2 == 0) + "\n" for i, m in enumerate(chats)))

# --- the tokenizer ------------------------------------------------------------------------------

tokenizer = tokenizers.Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
specials = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
tokenizer.train_from_iterator([m["content"] for c in chats for m in c] + ["system user assistant\n"] * 9, trainer)
tokenizer.save(str(folder / "tokenizer.json"))
(folder / "tokenizer_config.json").write_text(json.dumps({
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "</s>",
    "clean_up_tokenization_spaces": False, "chat_template": CHATML}, indent=1) + "\n")
(here / "generation.jinja").write_text(MARKED)
(here / "thinking.jinja").write_text(THINKING)

# --- the model ----------------------------------------------------------------------------------

torch.manual_seed(1)
config = transformers.LlamaConfig(vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                  max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=0, eos_token_id=3, pad_token_id=None)
transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
(folder / "generation_config.json").unlink(missing_ok=True)

# --- what transformers gives --------------------------------------------------------------------

hf = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="<|im_end|>", pad_token="</s>")


def escape(messages):
    """Text of the data never becomes a control token: encode it apart, as our tokenizer does."""
    return any("<|im" in m["content"] for m in messages)


out = []
for messages in chats:
    text = hf.apply_chat_template(messages, chat_template=CHATML, tokenize=False)
    spans, offset = [], 0
    for i, m in enumerate(messages):
        if m["role"] != "assistant":
            continue
        before = hf.apply_chat_template(messages[:i], chat_template=CHATML, tokenize=False, add_generation_prompt=True)
        after = hf.apply_chat_template(messages[:i + 1], chat_template=CHATML, tokenize=False)
        assert after.startswith(before) and text.startswith(after)
        spans.append((len(before), len(after)))
    if escape(messages):  # control tokens that a user typed are other ids in transformers
        out.append(None)
        continue
    encoded = hf(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = encoded["input_ids"]
    rule = [t if any(a <= b < e for a, e in spans) else -100 for t, (b, _) in zip(ids, encoded["offset_mapping"])]
    masked = hf.apply_chat_template(messages, chat_template=MARKED, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    assert list(masked["input_ids"]) == ids
    marked = [t if m else -100 for t, m in zip(ids, masked["assistant_masks"])]
    assert not any(b < a < e for a, _ in spans for b, e in encoded["offset_mapping"]), "a token across the border of an answer"
    out.append({"ids": ids, "labels": rule, "marked": marked})
(here / "expected.jsonl").write_text("".join(json.dumps(o, separators=(",", ":")) + "\n" for o in out))
print(sum(o is not None for o in out), "conversations,", sum(len(o["ids"]) for o in out if o), "tokens")
