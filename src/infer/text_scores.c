/*
 * text_scores.c: see text_scores.h. A text is cut into words in one of three ways; a word is then a
 * number, the same for equal words, and the scores compare lists of numbers.
 */
#include "infer/text_scores.h"

#include <ctype.h>
#include <math.h>

#include "io/value.h"

/* --- words ----------------------------------------------------------------------------------- */

/* --- code points ------------------------------------------------------------------------------ */

/* Decodes one code point at s; a byte that is not UTF-8 is its own code. */
static int next_code(const char *s, size_t n, uint32_t *code)
{
    const int length = utf8_decode(s, n, code);
    if (length) return length;
    *code = (unsigned char)*s;
    return 1;
}

/* Reports what Python's str.isspace does. */
static bool is_blank(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static uint32_t lower(uint32_t c)
{
    if (c >= 'A' && c <= 'Z') return c + 32;
    if (c >= 0xc0 && c <= 0xde && c != 0xd7) return c + 32;                           /* Latin-1 */
    /* Latin Extended-A: pairs, the upper case first... */
    if (c >= 0x100 && c <= 0x137 && c != 0x130) return c | 1;
    if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e)) return c + (c & 1); /* ...or at odd numbers */
    if (c >= 0x14a && c <= 0x177) return c | 1;
    if (c == 0x178) return 0xff;
    if (c >= 0x391 && c <= 0x3a9 && c != 0x3a2) return c + 32;                        /* Greek */
    if (c >= 0x410 && c <= 0x42f) return c + 32;                                      /* Cyrillic */
    if (c >= 0x400 && c <= 0x40f) return c + 80;
    return c == 0x212a ? 'k' : c == 0x2126 ? 0x3c9 : c; /* the signs of Kelvin and Ohm */
}

static void put_code(struct text *out, uint32_t c)
{
    char s[4];
    size_t n = 0;
    if (c < 0x80) s[n++] = (char)c;
    else if (c < 0x800) s[n++] = (char)(0xc0 | c >> 6), s[n++] = (char)(0x80 | (c & 63));
    else if (c < 0x10000)
        s[n++] = (char)(0xe0 | c >> 12), s[n++] = (char)(0x80 | (c >> 6 & 63)), s[n++] = (char)(0x80 | (c & 63));
    else
        s[n++] = (char)(0xf0 | c >> 18), s[n++] = (char)(0x80 | (c >> 12 & 63)), s[n++] = (char)(0x80 | (c >> 6 & 63)),
        s[n++] = (char)(0x80 | (c & 63));
    text_append(out, s, n);
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_punctuation(uint32_t c) { return c > 32 && c < 127 && !is_letter((char)c) && !is_digit((char)c); }

/* --- SQuAD ------------------------------------------------------------------------------------ */

static bool is_article(const char *s, size_t n)
{
    return (n == 1 && *s == 'a') || (n == 2 && !memcmp(s, "an", 2)) || (n == 3 && !memcmp(s, "the", 3));
}

/* Normalizes as SQuAD does: lower case, without ASCII punctuation and without a, an, the. Lower
 * case is that of ASCII, Latin-1, Latin Extended-A, Greek and Cyrillic letters. */
static void words_squad(const char *s, struct text *out)
{
    size_t first = out->n; /* of the word */
    uint32_t last = 0;     /* its last letter, in the text's case */
    for (size_t n = strlen(s);;) {
        uint32_t c = 0;
        const int length = n ? next_code(s, n, &c) : 0;
        if (!n || is_blank(c)) {
            /* a sigma at the end has another lower case */
            if (last == 0x3a3 && out->n > first + 2) out->at[out->n - 1] = '\x82';
            if (out->n > first && is_article(out->at + first, out->n - first)) out->n = first;
            if (out->n > first) text_append(out, " ", 1);
            first = out->n;
            last = 0;
        } else if (!is_punctuation(c)) {
            put_code(out, lower(last = c));
        }
        if (!n) break;
        s += length;
        n -= (size_t)length;
    }
    text_append(out, "", 0);
}

/* --- ROUGE ------------------------------------------------------------------------------------ */

static void words_rouge(const char *s, struct text *out)
{
    for (size_t n = strlen(s); n;) {
        uint32_t c;
        const int length = next_code(s, n, &c);
        c = lower(c);
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) put_code(out, c);
        else text_append(out, c == 0x130 ? "i " : " ", c == 0x130 ? 2 : 1); /* its lower case is i and a dot above */
        s += length;
        n -= (size_t)length;
    }
    text_append(out, "", 0);
}

/* --- 13a -------------------------------------------------------------------------------------- */

/* Reports whether a symbol is a word of its own: every ASCII symbol except ' , - and the full
 * stop. */
static bool stands_alone(char c)
{
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
           (c >= ':' && c <= '@') || c == '/';
}

static bool is_point(char c) { return c == '.' || c == ','; }

static void replace(struct text *x, const char *from, const char *to)
{
    struct text y = {0};
    const char *s = x->at;
    for (const char *found; (found = strstr(s, from)); s = found + strlen(from)) {
        text_append(&y, s, (size_t)(found - s));
        text_append(&y, to, strlen(to));
    }
    text_append(&y, s, strlen(s));
    text_free(x);
    *x = y;
}

/* Splits pairs: two neighbours become "first second " or " first second", and the search goes on
 * behind them. */
static void part_pairs(struct text *x, bool (*matches)(char a, char b), const char *before, const char *between,
                       const char *after)
{
    struct text y = {0};
    for (size_t i = 0; i < x->n;) {
        const bool pair = i + 1 < x->n && matches(x->at[i], x->at[i + 1]);
        if (pair) text_append(&y, before, strlen(before));
        text_append(&y, x->at + i++, 1);
        if (!pair) continue;
        text_append(&y, between, strlen(between));
        text_append(&y, x->at + i++, 1);
        text_append(&y, after, strlen(after));
    }
    text_free(x);
    *x = y;
}

static bool point_after(char a, char b) { return !is_digit(a) && is_point(b); }
static bool point_before(char a, char b) { return is_point(a) && !is_digit(b); }
static bool dash_after(char a, char b) { return is_digit(a) && b == '-'; }

static void put_symbols(struct text *x)
{
    struct text y = {0};
    for (size_t i = 0; i < x->n; i++) {
        const bool alone = stands_alone(x->at[i]);
        text_append(&y, " ", alone);
        text_append(&y, x->at + i, 1);
        text_append(&y, " ", alone);
    }
    text_free(x);
    *x = y;
}

/* Puts the words; blanks of any kind become spaces. */
static void put_words(const struct text *x, struct text *out)
{
    for (size_t i = 0; i < x->n;) {
        uint32_t c;
        const int length = next_code(x->at + i, x->n - i, &c);
        if (is_blank(c)) text_append(out, " ", 1);
        else text_append(out, x->at + i, (size_t)length);
        i += (size_t)length;
    }
    text_append(out, "", 0);
}

/* Splits as sacrebleu's tokenizer 13a does. */
static void words_13a(const char *s, struct text *out)
{
    static const char *const replaced[][2] = {{"<skipped>", ""}, {"-\n", ""},   {"\n", " "},  {"&quot;", "\""},
                                              {"&amp;", "&"},    {"&lt;", "<"}, {"&gt;", ">"}};
    struct text x = {0};
    size_t n = strlen(s);
    /* a line break at the end joins nothing */
    while (n && (unsigned char)s[n - 1] < 128 && is_blank((unsigned char)s[n - 1])) n--;
    text_append(&x, s, n);
    for (size_t i = 0; i < COUNT(replaced); i++) replace(&x, replaced[i][0], replaced[i][1]);
    struct text line = {0};
    text_append(&line, " ", 1);
    text_append(&line, x.at, x.n);
    text_append(&line, " ", 1);
    text_free(&x);
    put_symbols(&line);
    part_pairs(&line, point_after, "", " ", " ");
    part_pairs(&line, point_before, " ", " ", "");
    part_pairs(&line, dash_after, "", " ", " ");
    put_words(&line, out);
    text_free(&line);
}

/* --- words as numbers ------------------------------------------------------------------------- */

struct numbers {
    VEC(uint32_t) list;
};

struct text_scores_work {
    struct text left, right;   /* texts with blanks between words */
    struct numbers a, b;       /* of the answer; of the reference */
    VEC(uint32_t) row;         /* of the longest common subsequence */
};

static uint32_t words_of(const char *s)
{
    uint32_t n = 0;
    for (; *s; s++) n += *s != ' ' && (s[1] == ' ' || !s[1]);
    return n;
}

/* Sorts words of both texts, so that equal ones get one number. */
struct word {
    const char *at;
    size_t n;
    uint32_t index;
};
static int by_text(const void *x, const void *y)
{
    const struct word *a = x, *b = y;
    const int c = memcmp(a->at, b->at, a->n < b->n ? a->n : b->n);
    return c ? c : a->n < b->n ? -1 : a->n > b->n;
}

static uint32_t list_words(const char *s, struct word *out, uint32_t first)
{
    uint32_t n = 0;
    while (*s) {
        const size_t length = strcspn(s, " ");
        if (length) out[n] = (struct word){s, length, first + n}, n++;
        s += length + (s[length] == ' ');
    }
    return n;
}

static void number_words(struct text_scores_work *w)
{
    const char *left = w->left.n ? w->left.at : "", *right = w->right.n ? w->right.at : "";
    const uint32_t n = words_of(left), m = words_of(right);
    struct word *words = mem_alloc((n + m + 1) * sizeof *words);
    uint32_t number = 0;
    list_words(left, words, 0);
    list_words(right, words + n, n);
    qsort(words, n + m, sizeof *words, by_text);
    w->a.list.n = w->b.list.n = 0;
    for (uint32_t i = 0; i < n; i++) vec_push(&w->a.list, 0);
    for (uint32_t i = 0; i < m; i++) vec_push(&w->b.list, 0);
    for (uint32_t i = 0; i < n + m; i++) {
        if (i && by_text(&words[i - 1], &words[i])) number++;
        if (words[i].index < n) w->a.list.at[words[i].index] = number;
        else w->b.list.at[words[i].index - n] = number;
    }
    mem_free(words);
}

/* Cuts both texts into words in the same way. */
static void cut(struct text_scores_work *w, void (*into)(const char *s, struct text *out), const char *answer,
                const char *reference)
{
    w->left.n = w->right.n = 0;
    into(answer, &w->left);
    into(reference, &w->right);
    number_words(w);
}

/* --- n-grams ---------------------------------------------------------------------------------- */

struct gram {
    uint32_t at[BLEU_ORDER];
};
static int by_gram(const void *x, const void *y) { return memcmp(x, y, sizeof(struct gram)); }

static uint64_t list_grams(const struct numbers *x, uint32_t n, struct gram *out)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i + n <= x->list.n; i++) {
        out[count] = (struct gram){{0}};
        for (uint32_t k = 0; k < n; k++) out[count].at[k] = x->list.at[i + k] + 1;
        count++;
    }
    qsort(out, count, sizeof *out, by_gram);
    return count;
}

/* Counts the n-grams that both lists have, each as often as the one that has it less often. */
static uint64_t count_common(const struct numbers *a, const struct numbers *b, uint32_t n)
{
    struct gram *x = mem_alloc((a->list.n + 1) * sizeof *x), *y = mem_alloc((b->list.n + 1) * sizeof *y);
    const uint64_t p = list_grams(a, n, x), q = list_grams(b, n, y);
    uint64_t common = 0;
    for (uint64_t i = 0, j = 0; i < p && j < q;) {
        const int c = by_gram(&x[i], &y[j]);
        common += c == 0;
        i += c <= 0;
        j += c >= 0;
    }
    mem_free(x);
    mem_free(y);
    return common;
}

static double f_measure(double common, double a, double b)
{
    if (common == 0) return 0;
    const double precision = common / a, recall = common / b;
    return 2 * precision * recall / (precision + recall);
}

/* --- the scores ------------------------------------------------------------------------------- */

static bool is_exact(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    while (n && isspace((unsigned char)a[n - 1])) n--;
    while (m && isspace((unsigned char)b[m - 1])) m--;
    while (n && isspace((unsigned char)*a)) a++, n--;
    while (m && isspace((unsigned char)*b)) b++, m--;
    return n == m && !memcmp(a, b, n);
}

/* Returns F1. Two texts without words are equal. */
static double f1_of(const struct text_scores_work *w)
{
    const uint32_t n = w->a.list.n, m = w->b.list.n;
    return n && m ? f_measure((double)count_common(&w->a, &w->b, 1), n, m) : n == m;
}

static uint32_t longest_common(struct text_scores_work *w)
{
    const uint32_t n = w->a.list.n, m = w->b.list.n;
    w->row.n = 0;
    for (uint32_t j = 0; j <= m; j++) vec_push(&w->row, 0);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0, diagonal = 0; j < m; j++) { /* diagonal: of the row above, one to the left */
            const uint32_t above = w->row.at[j + 1], left = w->row.at[j];
            w->row.at[j + 1] = w->a.list.at[i] == w->b.list.at[j] ? diagonal + 1 : above > left ? above : left;
            diagonal = above;
        }
    return w->row.at[m];
}

void text_scores_add(struct text_scores *s, const char *answer, const char *reference)
{
    if (!s->work) s->work = mem_alloc(sizeof *s->work);
    struct text_scores_work *w = s->work;
    s->answers++;
    s->exact += is_exact(answer, reference);
    cut(w, words_squad, answer, reference);
    s->f1 += f1_of(w);
    cut(w, words_rouge, answer, reference);
    s->rouge_l += w->a.list.n && w->b.list.n ? f_measure(longest_common(w), w->a.list.n, w->b.list.n) : 0;
    cut(w, words_13a, answer, reference);
    s->words += w->a.list.n;
    s->reference_words += w->b.list.n;
    for (uint32_t n = 1; n <= BLEU_ORDER; n++) {
        s->matches[n - 1] += count_common(&w->a, &w->b, n);
        s->total[n - 1] += w->a.list.n >= n ? w->a.list.n - n + 1 : 0;
    }
}

void text_scores_merge(struct text_scores *to, const struct text_scores *from)
{
    to->answers += from->answers;
    to->exact += from->exact;
    to->f1 += from->f1;
    to->rouge_l += from->rouge_l;
    to->words += from->words;
    to->reference_words += from->reference_words;
    for (int n = 0; n < BLEU_ORDER; n++) {
        to->matches[n] += from->matches[n];
        to->total[n] += from->total[n];
    }
}

/* Returns the geometric mean of the precisions, each times 1/2, 1/4, ... where nothing matches, and
 * the penalty of answers that are shorter than the references. */
static double bleu(const struct text_scores *s)
{
    double sum = 0, smooth = 1;
    if (!s->matches[0]) return 0; /* a longer match has shorter ones in it */
    for (int n = 0; n < BLEU_ORDER; n++) {
        if (!s->total[n]) return 0;
        if (!s->matches[n]) smooth *= 2;
        sum += log(s->matches[n] ? (double)s->matches[n] / (double)s->total[n] : 1 / (smooth * (double)s->total[n]));
    }
    const double penalty = s->words < s->reference_words ? exp(1 - (double)s->reference_words / (double)s->words) : 1;
    return 100 * penalty * exp(sum / BLEU_ORDER);
}

struct text_score text_scores_result(const struct text_scores *s)
{
    if (!s->answers) return (struct text_score){0};
    const double n = (double)s->answers / 100;
    return (struct text_score){s->exact / n, s->f1 / n, bleu(s), s->rouge_l / n};
}

void text_scores_free(struct text_scores *s)
{
    if (s->work) {
        text_free(&s->work->left);
        text_free(&s->work->right);
        vec_free(&s->work->a.list);
        vec_free(&s->work->b.list);
        vec_free(&s->work->row);
    }
    mem_free(s->work);
    memset(s, 0, sizeof *s);
}
