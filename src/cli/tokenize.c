/*
 * tokenize.c: `plimsoll tokenize`: the lines of a file as token ids, or ids as text.
 *
 * A line ends at \n; \r belongs to the line. Lines are read one at a time, so that a file of any size
 * can be read.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "io/file.h"
#include "io/json.h"
#include "text/tokenizer.h"

struct request {
    const char *model, *file;
    bool decode, json, pieces, no_special, help;
};

/* --- arguments --------------------------------------------------------------------------- */

static int unknown_option(const char *a, struct error *e)
{
    static const char *const options[] = {"--model", "--decode", "--json", "--pieces", "--no-special"};
    const char *nearest = options[0];
    for (size_t k = 1; k < COUNT(options); k++)
        if (edit_distance(a, options[k]) < edit_distance(a, nearest)) nearest = options[k];
    return error_set(e, PL_USAGE, "unknown option %s; did you mean %s? --help lists them", a, nearest);
}

static int parse(struct request *r, int argc, char **argv, struct error *e)
{
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) r->help = true;
        else if (!strcmp(a, "--json")) r->json = true;
        else if (!strcmp(a, "--decode")) r->decode = true;
        else if (!strcmp(a, "--pieces")) r->pieces = true;
        else if (!strcmp(a, "--no-special")) r->no_special = true;
        else if (!strncmp(a, "--model=", 8)) r->model = a + 8;
        else if (!strcmp(a, "--model")) {
            if (++i == argc) return error_set(e, PL_USAGE, "--model needs a value");
            r->model = argv[i];
        } else if (a[0] == '-' && a[1]) return unknown_option(a, e);
        else if (r->file) return error_set(e, PL_USAGE, "two files are given: %s and %s", r->file, a);
        else r->file = a;
    }
    if (r->help) return PL_OK;
    if (!r->model || !r->file) return error_set(e, PL_USAGE, "expected --model FOLDER and a file of text: plimsoll %s", command_tokenize.usage);
    if (r->decode && r->pieces) return error_set(e, PL_USAGE, "--pieces shows the pieces of text; it does not go with --decode");
    return PL_OK;
}

/* --- lines ------------------------------------------------------------------------------- */

struct totals {
    uint64_t lines, bytes, tokens, different;
    bool *seen; /* [tokenizer_size] */
};

static void print_tokens(const struct tokenizer *t, const struct token_list *l, const struct totals *sum)
{
    struct text out = {0};
    text_printf(&out, "line %" PRIu64 ": %u token%s\n  ids    ", sum->lines, l->n, l->n == 1 ? "" : "s");
    for (uint32_t i = 0; i < l->n; i++) text_printf(&out, " %d", l->at[i].id);
    text_printf(&out, "\n  pieces ");
    for (uint32_t i = 0; i < l->n; i++) {
        char piece[512];
        text_escape(piece, sizeof piece, tokenizer_piece(t, l->at[i].id));
        text_printf(&out, " %s", piece);
    }
    text_append(&out, "\n", 1);
    fwrite(out.at, 1, out.n, stdout);
    text_free(&out);
}

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

static int encode_line(const struct request *r, const struct tokenizer *t, const char *line, size_t n, struct token_list *l, struct totals *sum, struct error *e)
{
    l->n = 0;
    if (tokenizer_encode(t, line, n, NULL, 0, !r->no_special, l, e)) return e->code;
    sum->tokens += l->n;
    for (uint32_t i = 0; i < l->n; i++) {
        sum->different += !sum->seen[l->at[i].id];
        sum->seen[l->at[i].id] = true;
    }
    if (r->json) write_tokens(t, l, r->pieces);
    else print_tokens(t, l, sum);
    return PL_OK;
}

/* A line is a JSON list of ids. */
static int decode_line(const struct request *r, const struct tokenizer *t, const char *line, size_t n, struct totals *sum, struct error *e)
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

static int each_line(const struct request *r, const struct tokenizer *t, FILE *f, struct totals *sum, struct error *e)
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
    printf("%s%s lines, %s bytes, %s tokens", sum->lines ? "\n" : "", count_print(sum->lines, lines), count_print(sum->bytes, bytes), count_print(sum->tokens, tokens));
    if (sum->tokens) printf(": %.2f bytes per token", (double)sum->bytes / (double)sum->tokens);
    printf("; %s different ids of %s\n", count_print(sum->different, different), count_print((uint64_t)tokenizer_size(t), size));
}

/* --- the command --------------------------------------------------------------------------- */

static int run(const struct request *r, const struct tokenizer *t, struct error *e)
{
    FILE *f = stdin;
    if (strcmp(r->file, "-")) {
        int fd = file_open(r->file, NULL, e);
        if (fd < 0) return e->code;
        f = fdopen(fd, "r");
        CHECK(f);
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
    struct request r = {0};
    struct tokenizer *t = NULL;
    if (parse(&r, argc, argv, e)) return e->code;
    if (r.help) {
        printf("usage: plimsoll %s\n\n%s\n", command_tokenize.usage, command_tokenize.summary);
        return PL_OK;
    }
    if (tokenizer_open(&t, r.model, e)) return e->code;
    int rc = run(&r, t, e);
    tokenizer_close(t);
    return rc;
}

const struct command command_tokenize = {
    "tokenize", "tokenize --model FOLDER [--decode] FILE [--no-special] [--pieces] [--json]",
    "Turns each line of a text file into token ids, as the model's tokenizer.json or tokenizer.model defines them: the same ids\n"
    "as the Hugging Face tokenizers library, or SentencePiece. FILE - is the standard input.\n"
    "  --model FOLDER   a model folder, or the path of a tokenizer.json or tokenizer.model\n"
    "  --decode         the other way: each line of FILE is a JSON list of ids and becomes text\n"
    "  --no-special     without the tokens that the tokenizer adds, such as BOS; with --decode, special tokens are left out\n"
    "  --pieces         with --json: each token as the file stores it, and its bytes in the line, as well\n"
    "  --json           a line of JSON for each line: {\"ids\": [...]}; with --decode a string", tokenize};
