/*
 * tokenize.c: `plimsoll tokenize` (report/requests.h).
 */
#include "cli/cli.h"
#include "report/requests.h"

struct tokenizing {
    struct options o;
    struct token_request tokens;
};

static int tokenize(struct options *o, struct error *e)
{
    struct token_request *r = &((struct tokenizing *)o)->tokens;
    if (o->paths.n > 1)
        return error_set(e, PL_USAGE, "two files are given: %s and %s", o->paths.at[0], o->paths.at[1]);
    if (!r->model || !o->paths.n)
        return error_set(e, PL_USAGE, "expected --model FOLDER and a file: plimsoll %s", command_tokenize.usage);
    r->file = o->paths.at[0], r->json = o->json;
    return token_request_run(r, e);
}

static const struct option OPTIONS[] = {
    OPTION(struct tokenizing, "--model", TEXT, tokens.model),
    OPTION(struct tokenizing, "--template", TEXT, tokens.template),
    OPTION(struct tokenizing, "--chat", SWITCH, tokens.chat),
    OPTION(struct tokenizing, "--add-generation-prompt", SWITCH, tokens.generation_prompt),
    OPTION(struct tokenizing, "--decode", SWITCH, tokens.decode),
    OPTION(struct tokenizing, "--pieces", SWITCH, tokens.pieces),
    OPTION(struct tokenizing, "--no-special", SWITCH, tokens.no_special)};

const struct command command_tokenize = {
    "tokenize",
    "tokenize --model FOLDER FILE | --decode FILE | --chat FILE.json [options]",
    "Turns each line of a text file into token ids, as the model's tokenizer.json or tokenizer.model\n"
    "defines them: the same ids as the Hugging Face tokenizers library, or SentencePiece. FILE - is the\n"
    "standard input.\n"
    "  --model FOLDER   a model folder, or the path of a tokenizer.json or tokenizer.model\n"
    "  --decode         the other way: each line of FILE is a JSON list of ids and becomes text\n"
    "  --chat           FILE is a conversation, a JSON list of {\"role\", \"content\"} or {\"messages\",\n"
    "                   \"tools\", \"chat_template_kwargs\"}: its text by the chat template, the ids, and\n"
    "                   the labels, which are -100 where nothing is trained; null and a warning where the\n"
    "                   answers are not found in the text. With the folder of a model that takes images,\n"
    "                   an image is <image> or a part of type image\n"
    "  --template FILE  with --chat: another template than the folder's\n"
    "  --add-generation-prompt  with --chat: the text up to where the model answers\n"
    "  --no-special     without the tokens that the tokenizer adds, such as BOS; with --decode, special\n"
    "                   tokens are left out\n"
    "  --pieces         with --json: each token as the file stores it, and its bytes in the line, as well\n"
    "  --json           a line of JSON for each line: {\"ids\": [...]}; with --decode a string; with --chat\n"
    "                   {\"text\", \"ids\", \"labels\"}",
    .shared = OPT_PATHS | OPT_JSON, COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(struct tokenizing, .o = {0}),
    .run = tokenize};
