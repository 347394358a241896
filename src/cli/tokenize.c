/*
 * tokenize.c: `plimsoll tokenize`: the lines of a file as token ids, or ids as text.
 *
 * A line ends at \n; \r belongs to the line. Lines are read one at a time, so that a file of any
 * size can be read.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/tokenize.h"
#include "io/file.h"
#include "io/json.h"

/* --- arguments --------------------------------------------------------------------------- */

static int unknown_option(const char *a, struct error *e)
{
    static const char *const options[] = {"--model", "--decode", "--chat",      "--template", "--add-generation-prompt",
                                          "--json",  "--pieces", "--no-special"};
    const char *nearest = options[0];
    for (size_t k = 1; k < COUNT(options); k++)
        if (edit_distance(a, options[k]) < edit_distance(a, nearest)) nearest = options[k];
    return error_set(e, PL_USAGE, "unknown option %s; did you mean %s? --help lists them", a, nearest);
}

/* Options with a value, written `--x value` or `--x=value`. */
static int parse_value(struct tokenize_request *r, int argc, char **argv, int *i, bool *found, struct error *e)
{
    const struct {
        const char *name;
        const char **to;
    } options[] = {{"--model", &r->model}, {"--template", &r->template}};
    for (size_t k = 0; k < COUNT(options); k++) {
        const size_t n = strlen(options[k].name);
        const char *a = argv[*i];
        if (strncmp(a, options[k].name, n) || (a[n] && a[n] != '=')) continue;
        *found = true;
        if (!a[n] && *i + 1 == argc) return error_set(e, PL_USAGE, "%s needs a value", a);
        *options[k].to = a[n] ? a + n + 1 : argv[++*i];
    }
    return PL_OK;
}

static int parse(struct tokenize_request *r, int argc, char **argv, struct error *e)
{
    const struct {
        const char *name;
        bool *to;
    } switches[] = {{"--help", &r->help},     {"-h", &r->help},
                    {"--json", &r->json},     {"--decode", &r->decode},
                    {"--pieces", &r->pieces}, {"--no-special", &r->no_special},
                    {"--chat", &r->chat},     {"--add-generation-prompt", &r->generation_prompt}};
    for (int i = 0; i < argc; i++) {
        bool found = false;
        for (size_t k = 0; k < COUNT(switches); k++)
            if (!strcmp(argv[i], switches[k].name)) *switches[k].to = found = true;
        if (!found && parse_value(r, argc, argv, &i, &found, e)) return e->code;
        if (found) continue;
        if (argv[i][0] == '-' && argv[i][1]) return unknown_option(argv[i], e);
        if (r->file) return error_set(e, PL_USAGE, "two files are given: %s and %s", r->file, argv[i]);
        r->file = argv[i];
    }
    if (r->help) return PL_OK;
    if (!r->model || !r->file)
        return error_set(e, PL_USAGE, "expected --model FOLDER and a file: plimsoll %s", command_tokenize.usage);
    if (r->decode + r->chat + r->pieces > 1)
        return error_set(e, PL_USAGE, "--decode, --chat and --pieces do not go together");
    if ((r->generation_prompt || r->template) && !r->chat)
        return error_set(e, PL_USAGE, "%s is for --chat", r->template ? "--template" : "--add-generation-prompt");
    return PL_OK;
}

/* --- lines ------------------------------------------------------------------------------- */

struct totals {
    uint64_t lines, bytes, tokens, different;
    bool *seen; /* [tokenizer_size] */
};

static void write_pieces(const struct tokenizer *t, const struct token_list *l, struct json_writer *w)
{
    json_begin_list(w, "pieces");
    for (uint32_t i = 0; i < l->n; i++) json_put_string(w, NULL, tokenizer_piece(t, l->at[i].id));
    json_end(w);
    json_begin_list(w, "bytes");
    for (uint32_t i = 0; i < l->n; i++) {
        json_begin_list(w, NULL);
        json_put_uint(w, NULL, l->at[i].begin);
        json_put_uint(w, NULL, l->at[i].end);
        json_end(w);
    }
    json_end(w);
}

static void write_tokens(const struct tokenizer *t, const struct token_list *l, bool pieces)
{
    struct text out = {0};
    struct json_writer w = {.out = &out};
    json_begin_map(&w, NULL);
    json_begin_list(&w, "ids");
    for (uint32_t i = 0; i < l->n; i++) json_put_int(&w, NULL, l->at[i].id);
    json_end(&w);
    if (pieces) write_pieces(t, l, &w);
    json_end(&w);
    text_append(&out, "\n", 1);
    fwrite(out.at, 1, out.n, stdout);
    text_free(&out);
}

static int encode_line(const struct tokenize_request *r, const struct tokenizer *t, const char *line, size_t n,
                       struct token_list *l, struct totals *sum, struct error *e)
{
    l->n = 0;
    if (tokenizer_encode(t, line, n, NULL, 0, !r->no_special, l, e)) return e->code;
    sum->tokens += l->n;
    for (uint32_t i = 0; i < l->n; i++) {
        sum->different += !sum->seen[l->at[i].id];
        sum->seen[l->at[i].id] = true;
    }
    if (r->json) {
        write_tokens(t, l, r->pieces);
        return PL_OK;
    }
    printf("line %" PRIu64 ": %u token%s\n", sum->lines, l->n, l->n == 1 ? "" : "s");
    tokenize_print(t, l);
    return PL_OK;
}

/* A line is a JSON list of ids. */
static int decode_line(const struct tokenize_request *r, const struct tokenizer *t, const char *line, size_t n,
                       struct totals *sum, struct error *e)
{
    struct bump tree = {0};
    struct value *list = NULL;
    struct text out = {0}, json = {0};
    VEC(int32_t) ids = {0};
    int rc = json_parse(line, n, &tree, &list, e);
    if (!rc) rc = value_as_list(list, "the line", e);
    for (uint32_t i = 0; !rc && i < list->count; i++) {
        int64_t id = -1;
        rc = value_as_int(list->items[i], "an id", &id, e);
        vec_push(&ids, id < 0 || id > INT32_MAX ? -1 : (int32_t)id);
    }
    if (!rc) rc = tokenizer_decode(t, ids.at, ids.n, r->no_special, &out, e);
    if (!rc && r->json) {
        struct json_writer w = {.out = &json};
        json_put_bytes(&w, NULL, out.n ? out.at : "", out.n);
        fwrite(json.at, 1, json.n, stdout);
    } else if (!rc && out.n) fwrite(out.at, 1, out.n, stdout);
    if (!rc) putchar('\n');
    sum->tokens += ids.n;
    vec_free(&ids);
    text_free(&out);
    text_free(&json);
    bump_free(&tree);
    return rc;
}

static int each_line(const struct tokenize_request *r, const struct tokenizer *t, FILE *f, struct totals *sum,
                     struct error *e)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    struct token_list tokens = {0};
    int rc = PL_OK;
    errno = 0;
    while (!rc && (n = getline(&line, &room, f)) >= 0) {
        size_t length = (size_t)n;
        if (length && line[length - 1] == '\n') length--;
        sum->lines++;
        sum->bytes += length;
        if (r->decode) rc = decode_line(r, t, line, length, sum, e);
        else rc = encode_line(r, t, line, length, &tokens, sum, e);
        if (rc) error_prepend(e, "%s: line %" PRIu64, strcmp(r->file, "-") ? r->file : "standard input", sum->lines);
    }
    if (!rc && !feof(f)) rc = file_error(r->file, "read", e);
    free(line);
    token_list_free(&tokens);
    return rc;
}

static void print_totals(const struct tokenizer *t, const struct totals *sum)
{
    char lines[32], bytes[32], tokens[32], different[32], size[32];
    printf("%s%s lines, %s bytes, %s tokens", sum->lines ? "\n" : "", count_print(sum->lines, lines),
           count_print(sum->bytes, bytes), count_print(sum->tokens, tokens));
    if (sum->tokens) printf(": %.2f bytes per token", (double)sum->bytes / (double)sum->tokens);
    printf("; %s different ids of %s\n", count_print(sum->different, different),
           count_print((uint64_t)tokenizer_size(t), size));
}

/* --- the command --------------------------------------------------------------------------- */

static int run(const struct tokenize_request *r, const struct tokenizer *t, struct error *e)
{
    FILE *f = stdin;
    if (strcmp(r->file, "-")) {
        int fd = file_open(r->file, NULL, e);
        if (fd < 0) return e->code;
        f = fdopen(fd, "r");
        if (!f) mem_exhausted("%s cannot be opened as a stream", r->file);
    }
    struct totals sum = {.seen = mem_alloc((size_t)tokenizer_size(t) + 1)};
    int rc = each_line(r, t, f, &sum, e);
    if (!rc && !r->decode && !r->json) print_totals(t, &sum);
    mem_free(sum.seen);
    if (f != stdin) fclose(f);
    if (!rc && fflush(stdout)) rc = error_set(e, PL_FAIL, "standard output: cannot write: %s", strerror(errno));
    return rc;
}

static int tokenize(int argc, char **argv, struct error *e)
{
    struct tokenize_request r = {0};
    struct tokenizer *t = NULL;
    if (parse(&r, argc, argv, e)) return e->code;
    if (r.help) {
        printf("usage: plimsoll %s\n\n%s\n", command_tokenize.usage, command_tokenize.summary);
        return PL_OK;
    }
    if (tokenizer_open(&t, r.model, e)) return e->code;
    int rc = r.chat ? tokenize_chat(&r, t, e) : run(&r, t, e);
    tokenizer_close(t);
    return rc;
}

const struct command command_tokenize =
    {"tokenize", "tokenize --model FOLDER FILE | --decode FILE | --chat FILE.json [options]",
     "Turns each line of a text file into token ids, as the model's tokenizer.json or tokenizer.model defines them: "
     "the same ids\n"
     "as the Hugging Face tokenizers library, or SentencePiece. FILE - is the standard input.\n"
     "  --model FOLDER   a model folder, or the path of a tokenizer.json or tokenizer.model\n"
     "  --decode         the other way: each line of FILE is a JSON list of ids and becomes text\n"
     "  --chat           FILE is a conversation, a JSON list of {\"role\", \"content\"} or {\"messages\", \"tools\"}: "
     "its text by the\n"
     "                   chat template, the ids, and the labels, which are -100 where nothing is trained;\n"
     "                   null and a warning where the answers are not found in the text\n"
     "                   With the folder of a model that takes images, an image is <image> or a part of type image\n"
     "  --template FILE  with --chat: another template than the folder's\n"
     "  --add-generation-prompt  with --chat: the text up to where the model answers\n"
     "  --no-special     without the tokens that the tokenizer adds, such as BOS; with --decode, special tokens are "
     "left out\n"
     "  --pieces         with --json: each token as the file stores it, and its bytes in the line, as well\n"
     "  --json           a line of JSON for each line: {\"ids\": [...]}; with --decode a string; with --chat "
     "{\"text\", \"ids\", \"labels\"}",
     tokenize};
