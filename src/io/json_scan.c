/*
 * json_scan.c: see json_scan.h.
 *
 * It sees only tokens. It rejects what cJSON would accept (control characters as blanks, "01",
 * raw line breaks in strings, invalid UTF-8, \u0000), bounds the nesting, and records the position
 * of each number:
 *
 *   bytes    {"a": [1, 18446744073709551615], "b": -2e3}
 *   numbers        ^  ^                            ^
 */
#include "io/json_scan.h"

/* cJSON copies a number into a buffer of 64 bytes and would truncate a longer one. */
enum { NUMBER_LENGTH = 63 };
/* Bytes that a value or a key takes here, in cJSON's tree and in ours, beside its text. */
enum { VALUE_BYTES = 200 };

int json_fail_at(const struct json_scan *s, const char *at, const char *what)
{
    unsigned line = 1, column = 1;
    for (const char *p = s->begin; p < at; p++) {
        column++;
        if (*p == '\n') line++, column = 1;
    }
    return error_set(s->e, PL_USAGE, "line %u, column %u: %s", line, column, what);
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Starts at the backslash. cJSON checks pairs of surrogates. */
static int scan_escape(struct json_scan *s)
{
    const char *start = s->at++;
    if (s->at == s->end) return json_fail_at(s, start, "the text ends inside a string");
    char c = *s->at++;
    if (!c || !strchr("\"\\/bfnrtu", c)) return json_fail_at(s, start, "unknown escape in a string");
    if (c != 'u') return PL_OK;
    for (int i = 0; i < 4; i++)
        if (s->end - s->at <= i || !is_hex(s->at[i]))
            return json_fail_at(s, start, "\\u needs four hexadecimal digits");
    if (!memcmp(s->at, "0000", 4)) return json_fail_at(s, start, "the string contains a NUL character");
    s->at += 4;
    return PL_OK;
}

/* Scans from the opening quote to just after the closing quote. */
static int scan_string(struct json_scan *s)
{
    const char *start = s->at++;
    while (s->at < s->end && *s->at != '"') {
        uint32_t code;
        if (*s->at == '\\') {
            if (scan_escape(s)) return s->e->code;
            continue;
        }
        int n = utf8_decode(s->at, (size_t)(s->end - s->at), &code);
        if (!n) return json_fail_at(s, s->at, "the string is not UTF-8");
        if (code < 0x20) return json_fail_at(s, s->at, "control character in a string; write it as an escape");
        s->at += n;
    }
    if (s->at == s->end) return json_fail_at(s, start, "the string has no closing quote");
    s->at++;
    return PL_OK;
}

static int scan_number(struct json_scan *s)
{
    struct span number = {s->at, 0};
    while (s->at < s->end && *s->at && strchr("0123456789+-.eE", *s->at)) s->at++;
    number.n = (size_t)(s->at - number.at);
    if (!number_is_json(number.at, number.n)) return json_fail_at(s, number.at, "malformed number");
    if (number.n > NUMBER_LENGTH) return json_fail_at(s, number.at, "the number has more than 63 characters");
    vec_push(&s->numbers, number);
    return PL_OK;
}

/* Scans true, false, null. The scan only separates their letters from the "e" of a number. */
static int scan_word(struct json_scan *s)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t n = 0, left = (size_t)(s->end - s->at);
    while (n < left && ((s->at[n] >= 'a' && s->at[n] <= 'z') || (s->at[n] >= 'A' && s->at[n] <= 'Z'))) n++;
    for (size_t i = 0; i < COUNT(words); i++)
        if (strlen(words[i]) == n && !memcmp(words[i], s->at, n)) {
            s->at += n;
            return PL_OK;
        }
    return json_fail_at(s, s->at, "expected a value; words other than true, false, null need quotes");
}

int json_scan_tokens(struct json_scan *s, bool member)
{
    int depth = 0;
    while (s->at < s->end) {
        char c = *s->at;
        int rc = PL_OK;
        if (member && !depth && (c == ',' || c == '}')) break;
        if (c == '"') rc = scan_string(s), s->values++;
        else if (c == '-' || (c >= '0' && c <= '9')) rc = scan_number(s), s->values++;
        else if (c && strchr(" \t\r\n:,{}[]", c)) {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            s->values += c == '{' || c == '[';
            if (depth > VALUE_DEPTH) rc = json_fail_at(s, s->at, "nested more than 128 deep");
            s->at++;
        } else rc = scan_word(s), s->values++;
        if (rc) return rc;
        if (s->values > s->most / VALUE_BYTES)
            return error_set(s->e, PL_USAGE, "its values take more than %llu MiB of memory",
                             (unsigned long long)(s->most >> 20));
    }
    return PL_OK;
}
