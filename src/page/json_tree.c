/*
 * json_tree.c: from a scanned JSON text to its tree, without a library (io/json_scan.h). A
 * configuration is JSON here, which is YAML too.
 *
 * A recursive descent. The scan has checked all tokens and the depth, so that only their order is
 * checked here.
 */
#include <math.h>

#include "io/json_scan.h"
#include "io/yaml.h"

struct descent {
    struct json_scan *s;
    struct bump *b;
    const char *at;
    uint32_t next_number;
};

static int parse_value(struct descent *d, struct value **out);

static int fail(const struct descent *d)
{
    if (d->at >= d->s->end) return json_fail_at(d->s, d->s->end, "the text ends too early");
    return json_fail_at(d->s, d->at, "expected a JSON value, or one of , : ] } before this");
}

/* Moves on to the next token, and returns its first character; 0 at the end. */
static char next(struct descent *d)
{
    while (d->at < d->s->end && strchr(" \t\r\n", *d->at)) d->at++;
    return d->at < d->s->end ? *d->at : 0;
}

/* Passes over a character that must be next. */
static int pass(struct descent *d, char c)
{
    if (next(d) != c) return fail(d);
    d->at++;
    return PL_OK;
}

/* --- strings ---------------------------------------------------------------------------------- */

static uint32_t four_digits(const char *at)
{
    char digits[5] = {at[0], at[1], at[2], at[3]};
    return (uint32_t)strtoul(digits, NULL, 16);
}

static void put_code(struct text *out, uint32_t c)
{
    char s[4];
    size_t n = 0;
    if (c < 0x80) s[n++] = (char)c;
    else if (c < 0x800) s[n++] = (char)(0xc0 | c >> 6);
    else if (c < 0x10000) s[n++] = (char)(0xe0 | c >> 12), s[n++] = (char)(0x80 | (c >> 6 & 0x3f));
    else {
        s[n++] = (char)(0xf0 | c >> 18);
        s[n++] = (char)(0x80 | (c >> 12 & 0x3f));
        s[n++] = (char)(0x80 | (c >> 6 & 0x3f));
    }
    if (c >= 0x80) s[n++] = (char)(0x80 | (c & 0x3f));
    text_append(out, s, n);
}

/* Starts at the u of an escape. Two of them make a character beyond U+FFFF. */
static int parse_code(struct descent *d, struct text *out)
{
    uint32_t c = four_digits(d->at + 1);
    const bool high = c >= 0xd800 && c < 0xdc00;
    d->at += 5;
    if (high && d->at[0] == '\\' && d->at[1] == 'u') {
        const uint32_t low = four_digits(d->at + 2);
        if (low < 0xdc00 || low > 0xdfff) return fail(d);
        d->at += 6;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    } else if (c >= 0xd800 && c < 0xe000) return fail(d);
    put_code(out, c);
    return PL_OK;
}

static int parse_string(struct descent *d, struct text *out)
{
    static const char escapes[] = "bfnrt", meant[] = "\b\f\n\r\t";
    for (d->at++; *d->at != '"';) {
        const char *e = *d->at == '\\' ? strchr(escapes, d->at[1]) : NULL;
        if (*d->at != '\\') text_append(out, d->at++, 1);
        else if (d->at[1] == 'u') {
            d->at++;
            TRY(parse_code(d, out));
        } else {
            text_append(out, e ? &meant[e - escapes] : d->at + 1, 1);
            d->at += 2;
        }
    }
    d->at++;
    return PL_OK;
}

/* --- values ----------------------------------------------------------------------------------- */

static int parse_number(struct descent *d, struct value **out)
{
    CHECK(d->next_number < d->s->numbers.n, "the text has fewer numbers than its tree");
    const struct span x = d->s->numbers.at[d->next_number++];
    d->at = x.at + x.n;
    *out = value_digits(d->b, x.at, x.n);
    if (isinf((*out)->number)) return json_fail_at(d->s, x.at, "the number is beyond the range of a double");
    return PL_OK;
}

static int parse_member(struct descent *d, struct value *map)
{
    struct text key = {0};
    struct value *child = NULL;
    int rc = next(d) == '"' ? parse_string(d, &key) : fail(d);
    if (!rc && value_get(map, key.n ? key.at : ""))
        rc = error_set(d->s->e, PL_USAGE, "the key \"%.200s\" occurs twice in one map", key.at);
    if (!rc) rc = pass(d, ':');
    if (!rc) rc = parse_value(d, &child);
    if (!rc) value_put(d->b, map, key.n ? key.at : "", child);
    text_free(&key);
    return rc;
}

static int parse_children(struct descent *d, struct value *parent)
{
    const bool map = parent->kind == VALUE_MAP;
    const char close = map ? '}' : ']';
    d->at++;
    if (next(d) == close) return d->at++, PL_OK;
    for (;;) {
        struct value *child = NULL;
        TRY(map ? parse_member(d, parent) : parse_value(d, &child));
        if (!map) value_append(d->b, parent, child);
        if (next(d) == close) return d->at++, PL_OK;
        TRY(pass(d, ','));
    }
}

static int parse_value(struct descent *d, struct value **out)
{
    const char c = next(d);
    struct text text = {0};
    int rc = PL_OK;
    if (c == '{' || c == '[') {
        *out = value_new(d->b, c == '{' ? VALUE_MAP : VALUE_LIST);
        return parse_children(d, *out);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return parse_number(d, out);
    if (c == '"') {
        rc = parse_string(d, &text);
        if (!rc) *out = value_string(d->b, text.n ? text.at : "");
        text_free(&text);
        return rc;
    }
    if (c != 't' && c != 'f' && c != 'n') return fail(d);
    *out = c == 'n' ? value_new(d->b, VALUE_NULL) : value_bool(d->b, c == 't');
    d->at += c == 'f' ? 5 : 4;
    return PL_OK;
}

int json_tree(struct json_scan *s, struct bump *b, struct value **out)
{
    struct descent d = {.s = s, .b = b, .at = s->begin};
    TRY(parse_value(&d, out));
    if (!next(&d)) return PL_OK;
    return json_fail_at(s, d.at, "unexpected text after the JSON value");
}

int yaml_parse(const char *bytes, size_t n, struct bump *b, struct value **out, struct error *e)
{
    return json_parse(bytes, n, b, out, e);
}
