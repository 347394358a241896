/*
 * generate.c: `plimsoll generate`: a language model continues prompts, which may have images
 * (infer/prompts.h).
 */
#include <math.h>

#include "cli/cli.h"
#include "infer/prompts.h"

struct generation {
    struct options o;
    struct text_request texts;
};

static int drop_training(const struct options *o, struct config *c, struct error *e)
{
    (void)o, (void)e;
    import_drop_training(c);
    return PL_OK;
}

static int generate(struct options *o, struct error *e)
{
    struct text_request *r = &((struct generation *)o)->texts;
    struct config *c = r->config = &o->config;
    if (!o->model)
        return error_set(e, PL_USAGE, "no model is given: add --model DIR, a folder with config.json and weights");
    TRY(text_request_check(r, e));
    TRY(options_configure(o, e));
    use_model(c, o->model, "text");
    config_use_adapter(c, o->adapter);
    TRY(config_check_read(c, "generate",
                          "model.* adapter.* data.tokenizer data.template data.chat_template_kwargs data.max_frames "
                          "data.fps data.tokens_per_frame data.range data.window data.percentiles data.slice_axis "
                          "data.volume_cache data.sample_memory memory.* device.*",
                          e));
    TRY(config_check(c, CONFIG_OPTIONS_ONLY, e));
    r->json = o->json;
    return text_request_run(r, e);
}

#define OWN(name, kind, member) OPTION(struct generation, name, kind, member)
static const struct option OPTIONS[] = {
    OWN("--prompt", TEXT, texts.given.text), OWN("--chat", TEXT, texts.given.chat),
    OWN("--ids", TEXT, texts.given.ids), OWN("--prompts", TEXT, texts.given.file),
    OWN("--stop", LIST, texts.stops), OWN("--image", LIST, texts.given.images),
    OWN("--video", LIST, texts.given.videos), OWN("--max-new", POSITIVE, texts.max_new),
    OWN("--batch", POSITIVE, texts.batch),
    OWN("--temperature", REAL, texts.temperature), OWN("--top-k", COUNT, texts.top_k),
    OWN("--top-p", REAL, texts.top_p),
    OWN("--repetition-penalty", REAL, texts.repetition_penalty),
    OWN("--seed", COUNT, texts.seed), OWN("--context", POSITIVE, texts.context),
    OWN("--chunk", POSITIVE, texts.chunk), OWN("--dry-run", SWITCH, texts.dry_run),
    OWN("--explain", SWITCH, texts.explain)};

const struct command command_generate = {
    "generate",
    "generate --model DIR [--adapter DIR] (--prompt TEXT | --chat FILE.json | --ids 1,2,3 | --prompts FILE) "
    "[--image FILE]... [--video FILE]... [--max-new N] [--temperature T] [--config-from FILE]... [--memory SIZE] "
    "[--json]",
    "Generates text: a language model continues a prompt, or answers a chat, about images if it takes\n"
    "them. Weights, the KV cache and both programs, for chunks of the prompt and for the next token, are\n"
    "planned within --memory before anything runs.\n"
    "\n"
    "  --model DIR            a model folder, or the name of a preset\n"
    "  --adapter DIR          a LoRA adapter for that model, as PEFT or a run with an adapter saves it\n"
    "  --prompt TEXT          the text to continue\n"
    "  --chat FILE.json       messages, [{\"role\": \"user\", \"content\": \"...\"}, ...], or a map with messages,\n"
    "                         tools and chat_template_kwargs: the model's chat template renders them, and\n"
    "                         the answer is the assistant's next turn\n"
    "  --ids 1,2,3            the prompt as token ids; the answer is printed as ids\n"
    "  --prompts FILE         many prompts: JSON lines, a JSON list or Parquet with {\"prompt\": TEXT},\n"
    "                         {\"messages\": [...]} or {\"conversations\": [...]}, perhaps with images and\n"
    "                         videos; or a .txt with a prompt a line. Prints a line of JSON for each, in\n"
    "                         their order\n"
    "  --batch N              prompts that are answered at once; default: as many as --memory allows, at\n"
    "                         most 32; without it as many as the free memory allows\n"
    "  --image FILE           an image of the prompt, for a model that takes images; may be given several\n"
    "                         times. Where <image> is in the text, the images stand there, else before\n"
    "                         the text. A chat's messages may name images themselves\n"
    "  --video FILE           a video of the prompt, a file or a folder of its frames, where <video> is\n"
    "                         in the text or before it. Set data.max_frames, and data.fps and\n"
    "                         data.tokens_per_frame, as in training (--set)\n"
    "  --max-new N            tokens of the answer, at most; default: max_new_tokens of\n"
    "                         generation_config.json, else 256\n"
    "  --temperature T        0: greedy, always the most likely token. Above 0: tokens are drawn, and a\n"
    "                         higher T makes unlikely ones likelier. Default: generation_config.json,\n"
    "                         else 0\n"
    "  --top-k K              draws among the K most likely tokens; 0: all. Default:\n"
    "                         generation_config.json, else 50\n"
    "  --top-p P              draws among the most likely tokens that together have the probability P.\n"
    "                         Default: likewise, else 1\n"
    "  --repetition-penalty P makes tokens of the text so far less likely; 1: none. Default: likewise,\n"
    "                         else 1\n"
    "  --seed N               of the draws (0): the same seed gives the same text. Each prompt of a file\n"
    "                         has draws of its own, whatever --batch is\n"
    "  --stop TEXT            ends the answer before this text; may be given several times. The tokens of\n"
    "                         eos_token_id in generation_config.json, else config.json, end it too, and\n"
    "                         in a chat the tokenizer's eos_token\n"
    "  --context N            tokens of prompt and answer for which the KV cache is planned; default: the\n"
    "                         prompt and --max-new\n"
    "  --chunk N              tokens of the prompt that are processed at once; default: the planner\n"
    "                         chooses\n"
    "  --dry-run              prints the plan and generates nothing\n"
    "  --explain              with --dry-run: also shows the largest tensors, and lists both programs,\n"
    "                         their kernels, and every storage with its offset\n"
    "  --json                 prints one JSON object: ids, text, finish (eos, stop or length), speed,\n"
    "                         memory\n"
    "  --memory SIZE          memory budget, memory.budget\n"
    CONFIG_FROM_HELP
    "  --set key=value        sets a configuration key, such as device=cuda, memory.precision=f32,\n"
    "                         memory.quantize=nf4, data.tokenizer, data.template, or\n"
    "                         data.chat_template_kwargs={enable_thinking: false}",
    .shared = OPT_MODEL | OPT_MEMORY | OPT_JSON | OPT_SET | OPT_FROM, COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(struct generation, .texts = TEXT_REQUEST),
    .between = drop_training, .run = generate};
