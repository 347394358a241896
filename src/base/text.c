/*
 * text.c: growable text, parsing and printing of sizes, printing of durations, name patterns, and
 * small utilities (clock, hash).
 */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <strings.h>
#include <time.h>

#include "base/base.h"
#include "base/keyed.h"

/* Makes room for `more` bytes and the terminator. */
static void text_reserve(struct text *t, size_t more)
{
    size_t need = t->n + more + 1;
    if (need <= t->cap) return;
    size_t cap = t->cap ? t->cap * 2 : 256;
    if (cap < need) cap = need;
    t->at = mem_resize(t->at, cap);
    t->cap = cap;
}

/* Returns the bytes of the control code at `s`; 0: none. U+0080 to U+009F, two bytes of UTF-8, are
 * control codes too. */
static int control_bytes(const unsigned char *s)
{
    if (s[0] < 0x20 || s[0] == 0x7f) return 1;
    return s[0] == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0 ? 2 : 0;
}

void text_escape(char *out, size_t room, const char *text)
{
    size_t n = 0;
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        char code[16] = {(char)*s, 0};
        const int bytes = control_bytes(s);
        if (*s == '\n' || *s == '\t' || *s == '\r')
            snprintf(code, sizeof code, "\\%c", *s == '\n' ? 'n' : *s == '\t' ? 't' : 'r');
        else if (bytes == 1) snprintf(code, sizeof code, "\\x%02x", s[0]);
        else if (bytes == 2) snprintf(code, sizeof code, "\\x%02x\\x%02x", s[0], s[1]);
        const size_t length = strlen(code);
        if (n + length >= room) break;
        memcpy(out + n, code, length);
        n += length;
        s += bytes ? bytes : 1;
    }
    out[n] = 0;
}

void print_line(const char *fmt, ...)
{
    char line[4096], escaped[2 * sizeof line];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    text_escape(escaped, sizeof escaped, line);
    puts(escaped);
}

/* Prints into the free space, which most texts fit; a longer one is printed again after the buffer
 * has grown. */
void text_printf(struct text *t, const char *fmt, ...)
{
    va_list args, again;
    text_reserve(t, 64);
    size_t room = t->cap - t->n;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(t->at + t->n, room, fmt, args);
    va_end(args);
    CHECK(n >= 0, "the format cannot be printed");
    if ((size_t)n >= room) {
        text_reserve(t, (size_t)n);
        vsnprintf(t->at + t->n, (size_t)n + 1, fmt, again);
    }
    va_end(again);
    t->n += (size_t)n;
}

void text_append(struct text *t, const char *bytes, size_t n)
{
    text_reserve(t, n);
    if (n) memcpy(t->at + t->n, bytes, n);
    t->n += n;
    t->at[t->n] = 0;
}

void text_free(struct text *t)
{
    mem_free(t->at);
    *t = (struct text){0};
}

/* ---- sizes ---- */

static const struct { const char *name; uint64_t bytes; } size_units[] = {
    {"", 1}, {"B", 1},
    {"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}, {"TiB", 1ull << 40},
    {"KB", 1000ull}, {"MB", 1000000ull}, {"GB", 1000000000ull}, {"TB", 1000000000000ull},
};

/* Returns the bytes of a unit, in any case; 0 when the text is not a unit. */
static uint64_t size_unit(const char *s)
{
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1])) n--;
    for (size_t i = 0; i < COUNT(size_units); i++)
        if (strlen(size_units[i].name) == n && !strncasecmp(s, size_units[i].name, n))
            return size_units[i].bytes;
    return 0;
}

/* Computes in integers: a budget is a count of bytes and must not be rounded by a double. A
 * fraction ("1.5GiB") is allowed before a unit larger than a byte, and is rounded down to whole
 * bytes. */
bool size_parse(const char *s, uint64_t *bytes)
{
    while (isspace((unsigned char)*s)) s++;
    if (!isdigit((unsigned char)*s)) return false;
    unsigned __int128 whole = 0, part = 0, scale = 1;
    for (; isdigit((unsigned char)*s); s++) {
        whole = whole * 10 + (unsigned)(*s - '0');
        if (whole > UINT64_MAX) return false;
    }
    bool fraction = *s == '.';
    if (fraction) {
        if (!isdigit((unsigned char)*++s)) return false;
        for (; isdigit((unsigned char)*s); s++)
            if (scale < 1000000000000000000ull) { /* later digits are worth less than a byte */
                part = part * 10 + (unsigned)(*s - '0');
                scale *= 10;
            }
    }
    while (isspace((unsigned char)*s)) s++;
    uint64_t unit = size_unit(s);
    if (!unit || (fraction && unit == 1)) return false;
    unsigned __int128 total = whole * unit + part * unit / scale;
    if (total > UINT64_MAX) return false;
    *bytes = (uint64_t)total;
    return true;
}

char *size_print(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t u = 0;
    double x = (double)bytes;
    /* 1023.995 would print as 1024.00, so the next unit is used. */
    while (x >= (u ? 1023.995 : 1024) && u + 1 < COUNT(units)) x /= 1024, u++;
    snprintf(out, 32, u ? "%.2f %s" : "%.0f %s", x, units[u]);
    return out;
}

/* ---- durations ---- */

/* Prints three significant digits, never an exponent: "1.25 s", "18 ms". Returns false when
 * rounding reaches `next`, as in 999.7 ms, which the next unit shows as 1 s. */
static bool print_short(double x, double next, const char *unit, char out[32])
{
    const int digits = x < 9.995 ? 2 : x < 99.95 ? 1 : 0;
    char number[24];
    snprintf(number, sizeof number, "%.*f", digits, x);
    if (strtod(number, NULL) >= next) return false;
    size_t n = strlen(number);
    while (digits && number[n - 1] == '0') number[--n] = 0;
    if (number[n - 1] == '.') number[--n] = 0;
    snprintf(out, 32, "%s %s", number, unit);
    return true;
}

/* Prints two units, the smaller one rounded, and left out when it is zero: "2 h 5 min", "30
 * min". */
static void print_long(double seconds, char out[32])
{
    static const struct {
        const char *name;
        int64_t seconds;
    } units[] = {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}};
    size_t u = 0; /* the smaller unit */
    int64_t n;
    do n = (int64_t)(seconds / (double)units[u].seconds + 0.5) * units[u].seconds; /* 59 min 59.9 s becomes 1 h */
    while (u + 2 < COUNT(units) && n >= units[u + 2].seconds && ++u);
    const int64_t left = n % units[u + 1].seconds / units[u].seconds;
    int length = snprintf(out, 32, "%lld %s", (long long)(n / units[u + 1].seconds), units[u + 1].name);
    if (left) snprintf(out + length, 32 - (size_t)length, " %lld %s", (long long)left, units[u].name);
}

char *duration_print(double seconds, char out[32])
{
    if (!(fabs(seconds) < 1e12)) {
        snprintf(out, 32, "%s", isnan(seconds) ? "unknown" : seconds < 0 ? "-inf" : "inf");
        return out;
    }
    char text[32];
    const double x = fabs(seconds);
    if (x < 5e-9) snprintf(text, sizeof text, "0 s");
    else if (!print_short(1e6 * x, 1000, "us", text) && !print_short(1e3 * x, 1000, "ms", text) &&
             !print_short(x, 60, "s", text))
        print_long(x, text);
    snprintf(out, 32, "%s%.30s", seconds < 0 && strcmp(text, "0 s") ? "-" : "", text);
    return out;
}

char *duration_change(double seconds, char out[32])
{
    char text[32];
    duration_print(seconds, text);
    snprintf(out, 32, "%s%.30s", text[0] == '-' ? "" : "+", text);
    return out;
}

/* ---- names ---- */

/* Takes linear time in practice: a mismatch only retries the last star, one character further
 * on. */
bool pattern_match(const char *pattern, const char *name)
{
    const char *star = NULL, *resume = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            resume = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++, name++;
        } else if (star) {
            pattern = star + 1;
            name = ++resume;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Edits are a character more, less or other, and two neighbours swapped. One row of the table at a
 * time: row[i][j] is the distance from the first i characters of `a` to the first j of `b`; three
 * rows are kept. With `wild` a star in `a` matches any number of characters at no cost, and a
 * question mark matches any one character. Texts of more than DISTANCE_MOST bytes are not
 * compared. */
enum { DISTANCE_MOST = 512 };
static int distance(const char *a, const char *b, bool wild)
{
    size_t na = strlen(a), nb = strlen(b), width = nb + 1;
    if (na > DISTANCE_MOST || nb > DISTANCE_MOST) return (int)min_u64(na > nb ? na : nb, INT32_MAX);
    int *rows = mem_alloc(3 * width * sizeof *rows);
    for (size_t j = 0; j <= nb; j++) rows[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *row = rows + i % 3 * width;
        const int *above = rows + (i - 1) % 3 * width, *before = rows + (i + 1) % 3 * width;
        bool star = wild && a[i - 1] == '*', any = wild && a[i - 1] == '?';
        row[0] = above[0] + !star;
        for (size_t j = 1; j <= nb; j++) {
            int replaced = above[j - 1] + (a[i - 1] != b[j - 1] && !any);
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            row[j] = star ? least(above[j], row[j - 1]) : least(least(above[j], row[j - 1]) + 1, replaced);
            if (swapped) row[j] = least(row[j], before[j - 2] + 1);
        }
    }
    int result = rows[na % 3 * width + nb];
    mem_free(rows);
    return result;
}

int edit_distance(const char *a, const char *b)
{
    return distance(a, b, false);
}

int pattern_distance(const char *pattern, const char *name)
{
    return distance(pattern, name, true);
}

void closest_try(struct closest *n, const char *name)
{
    enum { WORK = 50000000 };
    n->work += (uint64_t)min_u64(strlen(n->to), DISTANCE_MOST) * min_u64(strlen(name), DISTANCE_MOST);
    if (n->found && n->work > WORK) return;
    const int distance = edit_distance(n->to, name);
    if (!n->found || distance < n->distance) n->found = name, n->distance = distance;
}

/* ---- clock and hash ---- */

bool text_ends_with(const char *s, const char *ending)
{
    size_t n = strlen(s), m = strlen(ending);
    return n >= m && !strcmp(s + n - m, ending);
}

bool path_has_ending(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);
    return n > m && !strcasecmp(path + n - m, ending);
}

double clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Hashes in four independent lanes over 32-byte blocks, which keep the multiplier busy; the tail is
 * padded with zeroes, and the length distinguishes it from real zeroes. Words are read in the
 * machine's order (little-endian on all supported machines). The hash is not
 * collision-resistant. */
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed)
{
    const char *at = p;
    size_t left = n;
    uint64_t lane[4] = {seed, seed + 1, seed + 2, seed + 3}, w[4];
    for (; left >= sizeof w; at += sizeof w, left -= sizeof w) {
        memcpy(w, at, sizeof w);
        for (int i = 0; i < 4; i++) lane[i] = keyed_absorb(lane[i], w[i]);
    }
    memset(w, 0, sizeof w);
    if (left) memcpy(w, at, left);
    uint64_t h = n ^ seed;
    for (int i = 0; i < 4; i++) h = keyed_absorb(h, keyed_absorb(lane[i], w[i]));
    return keyed_finish(h);
}

char *count_print(uint64_t n, char out[32])
{
    char digits[24];
    const int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    char *to = out;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    *to = 0;
    return out;
}
