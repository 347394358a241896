/*
 * test_token_store.c: a token store gives back what was written, damage is found, and its rows have
 * the ids, labels, positions and ranges of their conversations.
 */
#include "data/text/conversations.h"
#include "data/order.h"
#include "io/file.h"

#include "harness.h"

static char path[300];

/* Sample i has `tokens` ids 100 * i + k, and answers as given. */
static const struct made {
    uint32_t tokens, n_answers;
    struct byte_range answers[3];
    bool plain;
} made[] = {
    {10, 2, {{3, 5}, {8, 10}}, false},
    {4, 1, {{2, 4}}, false},
    {6, 1, {{0, 6}}, true},
    {12, 3, {{1, 3}, {5, 7}, {9, 12}}, false},
    {1, 1, {{0, 1}}, false},              /* nothing predicts its only token */
    {20, 1, {{15, 20}}, false},
    {30, 1, {{0, 30}}, true},
};
enum { MADE = sizeof made / sizeof *made };

static void make_store(void)
{
    struct token_store_writer *w;
    struct error e;
    const struct token_store_key key = {1, 2, 3, 4};
    assert_int_equal(token_store_create(&w, path, &key, 0, &e), 0);
    for (int i = 0; i < MADE; i++) {
        int32_t ids[64];
        for (uint32_t k = 0; k < made[i].tokens; k++) ids[k] = (int32_t)(100 * i + (int)k);
        const struct new_sample s = {.ids = ids, .tokens = made[i].tokens, .answers = made[i].answers,
                                     .n_answers = made[i].n_answers, .file = "chats.jsonl", .line = (uint64_t)i + 1,
                                     .number = (uint64_t)i, .flags = made[i].plain ? STORED_PLAIN : 0};
        assert_int_equal(token_store_add(w, &s, &e), 0);
    }
    struct sample_report *r = token_store_report(w);
    r->read = MADE + 1;
    r->bad[SAMPLE_FINE] = MADE;
    r->bad[SAMPLE_ROLE] = 1;
    strcpy(r->first[SAMPLE_ROLE], "chats.jsonl:9: turn 2 has the role \"x\"");
    if (token_store_finish(w, &e)) fail_msg("%s", e.text);
}

TEST(test_gives_back)
{
    struct token_store s;
    struct error e;
    make_store();
    if (token_store_open(&s, path, &e)) fail_msg("%s", e.text);
    assert_int_equal(s.header->samples, MADE);
    assert_int_equal(s.header->largest, 629);
    for (int i = 0; i < MADE; i++) {
        const struct stored_sample *x = &s.samples[i];
        assert_int_equal(x->tokens, made[i].tokens);
        assert_int_equal(x->line, i + 1);
        assert_int_equal(x->number, i);
        assert_string_equal(s.names + x->file, "chats.jsonl");
        assert_memory_equal(s.answers + x->first_answer, made[i].answers,
                            made[i].n_answers * sizeof(struct byte_range));
        for (uint32_t k = 0; k < x->tokens; k++) assert_int_equal(s.ids[x->first + k], 100 * i + (int)k);
    }
    assert_null(token_store_differs(&s.header->key, &(struct token_store_key){1, 2, 3, 4}));
    assert_string_equal(token_store_differs(&s.header->key, &(struct token_store_key){1, 5, 3, 4}),
                        "another tokenizer");
    assert_string_equal(token_store_differs(&s.header->key, &(struct token_store_key){1, 2, 5, 4}),
                        "another chat template");
    struct text t = {0};
    report_print(&s.header->report, &t);
    assert_string_equal(t.at,
                        "1 of 8 samples cannot be used: 1 unknown role (chats.jsonl:9: turn 2 has the role \"x\")");
    text_free(&t);
    token_store_close(&s);
}

/* Every byte matters, but for the padding between the header and the ids. */
TEST(test_finds_damage)
{
    char *bytes;
    size_t n;
    struct token_store s;
    struct error e;
    make_store();
    assert_int_equal(file_read(path, 1 << 20, &bytes, &n, &e), 0);
    for (size_t at = 0; at < n; at += at < sizeof(struct token_store_header) || at >= TOKEN_STORE_DATA ? 7 : 64) {
        if (at >= sizeof(struct token_store_header) && at < TOKEN_STORE_DATA) continue;
        bytes[at] ^= 0x10;
        assert_int_equal(file_write_atomic(path, bytes, n, &e), 0);
        if (!token_store_open(&s, path, &e)) fail_msg("damage at byte %zu of %zu is not found", at, n);
        assert_non_null(strstr(e.text, path));
        bytes[at] ^= 0x10;
    }
    static const size_t cuts[] = {0, 10, 4000, 4096, 4200};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        assert_int_equal(file_write_atomic(path, bytes, cuts[i], &e), 0);
        assert_int_equal(token_store_open(&s, path, &e), PL_USAGE);
    }
    assert_int_equal(file_write_atomic(path, bytes, n - 1, &e), 0);
    assert_int_equal(token_store_open(&s, path, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "it is cut"));
    mem_free(bytes);
}

/* --- rows ------------------------------------------------------------------------------- */

enum { T = 16 };
static int32_t ids[T], labels[T], positions[T], ranges[2 * T];
static struct token_row row = {ids, labels, positions, ranges, 0, 0};

/* Whether sample i's token k has a label. */
static bool labelled(const struct conversations *c, int i, uint32_t k, uint32_t tokens)
{
    bool in = c->o.train_on == TRAIN_ON_ALL;
    uint32_t n = 0;
    while (n < made[i].n_answers && made[i].answers[n].begin < tokens) n++;
    for (uint32_t a = c->o.train_on == TRAIN_ON_LAST ? n - 1 : 0; a < n; a++)
        in |= k >= made[i].answers[a].begin && k < made[i].answers[a].end;
    return in && k;
}

static void check_row(const struct conversations *c, uint64_t r, uint64_t *tokens, uint64_t *with_labels)
{
    struct error e;
    uint32_t t = 0, count = 0;
    assert_int_equal(conversations_read(c, r, &row, &e), 0);
    while (t < T && ranges[2 * t] == (int32_t)t && t < row.tokens) { /* a conversation begins here */
        const uint32_t from = t;
        const int i = ids[t] / 100;
        uint32_t n = from;
        while (n < row.tokens && ids[n] / 100 == i) n++;
        for (; t < n; t++) {
            const uint32_t k = t - from;
            assert_int_equal(ids[t], 100 * i + (int)k);
            assert_int_equal(positions[t], k);
            assert_int_equal(ranges[2 * t], from);
            assert_int_equal(ranges[2 * t + 1], t + 1);
            const bool has = labelled(c, i, k, n - from);
            assert_int_equal(labels[t], has ? ids[t] : -100);
            count += has;
        }
    }
    assert_int_equal(t, row.tokens);
    assert_int_equal(count, row.labelled);
    for (; t < T; t++) {
        assert_int_equal(ids[t], 7);
        assert_int_equal(labels[t], -100);
        assert_true(!ranges[2 * t] && !ranges[2 * t + 1]);
    }
    *tokens += row.tokens;
    *with_labels += row.labelled;
}

TEST(test_rows)
{
    make_store();
    for (int on = 0; on < 3; on++)
        for (int cut = 0; cut < 2; cut++)
            for (int packing = 0; packing < 2; packing++) {
                struct conversations c;
                struct error e;
                const struct conversations_options o = {.sequence = T, .train_on = on,
                                                        .too_long = cut ? TOO_LONG_CUT : TOO_LONG_DROP,
                                                        .packing = packing, .vocabulary = 1000, .max_bad = 0.2,
                                                        .padding = 7};
                uint64_t tokens = 0, with_labels = 0;
                if (conversations_open(&c, path, &o, &e)) fail_msg("%s", e.text);
                for (uint64_t r = 0; r < conversations_count(&c); r++) check_row(&c, r, &tokens, &with_labels);
                assert_int_equal(tokens, c.tokens);
                assert_int_equal(with_labels, c.labels);
                assert_int_equal(c.unlabelled, 1);
                /* the first answer of sample 5 does not fit, sample 6 is text */
                assert_int_equal(c.too_long, cut ? 1 : 2);
                assert_true(!c.cut && c.cut_texts == (uint64_t)cut && c.cut_tokens == (uint64_t)(cut ? 30 - T : 0));
                assert_int_equal(c.rows.n, packing ? (cut ? 3 : 2) : 4 + cut);
                conversations_pad(&c, &row);
                assert_true(!row.tokens && labels[0] == -100);
                conversations_close(&c);
            }
}

/* A text that is longer than a row is split into rows, and each of its tokens is in one of them; a
 * conversation is split at turns. */
TEST(test_split)
{
    struct conversations c;
    struct error e;
    struct text said = {0};
    uint32_t seen[40] = {0};
    make_store();
    for (int how = TOO_LONG_AUTO; how <= TOO_LONG_SPLIT; how += TOO_LONG_SPLIT) {
        const struct conversations_options o = {.sequence = 8, .train_on = TRAIN_ON_ASSISTANT, .too_long = how,
                                                .max_bad = 1};
        if (conversations_open(&c, path, &o, &e)) fail_msg("%s", e.text);
        memset(seen, 0, sizeof seen);
        for (uint32_t i = 0; i < c.used.n; i++)
            for (uint32_t k = 0; k < c.used.at[i].size.tokens && c.used.at[i].sample == 6; k++)
                seen[c.used.at[i].begin + k]++;
        for (uint32_t k = 0; k < 30; k++) assert_int_equal(seen[k], 1);
        assert_int_equal(c.too_long, how ? 1 : 3); /* samples 0, 3 and 5; in sample 5 one turn is too long */
        assert_int_equal(c.split_long, how ? 3 : 0);
        assert_int_equal(c.samples, how ? 5 : 3);
        assert_int_equal(c.used.n, how ? 1 + 1 + 4 + 2 + 2 : 1 + 1 + 4);
        said.n = 0;
        conversations_print_left(&c, &said);
        assert_non_null(strstr(said.at, how ? "3 samples are longer than data.sequence and split at turns"
                                            : "data.too_long: cut keeps the turns that fit, split all"));
        conversations_close(&c);
    }
    text_free(&said);
}

/* A single text is held out by rows, each of which is in one of the two parts. */
TEST(test_one_text)
{
    struct token_store_writer *w;
    struct conversations c;
    struct error e;
    const struct token_store_key key = {1, 2, 3, 4};
    int32_t text[101];
    uint32_t seen[101] = {0}, held = 0;
    for (int i = 0; i < 101; i++) text[i] = i;
    assert_int_equal(token_store_create(&w, path, &key, 0, &e), 0);
    assert_int_equal(token_store_add(w,
                                     &(struct new_sample){.ids = text, .tokens = 101,
                                                          .answers = (struct byte_range[]){{0, 101}},
                                                          .n_answers = 1,
                                                          .file = "a.txt",
                                                          .line = 1,
                                                          .flags = STORED_PLAIN},
                                     &e),
                     0);
    token_store_report(w)->read = token_store_report(w)->bad[SAMPLE_FINE] = 1;
    assert_int_equal(token_store_finish(w, &e), 0);
    for (int part = 0; part < 2; part++) {
        const struct conversations_options o = {.sequence = 10, .packing = true, .holdout = 0.2, .held = part};
        if (conversations_open(&c, path, &o, &e)) fail_msg("%s", e.text);
        for (uint32_t i = 0; i < c.used.n; i++)
            for (uint32_t k = 0; k < c.used.at[i].size.tokens; k++) seen[c.used.at[i].begin + k]++;
        if (part) held = c.rows.n;
        conversations_close(&c);
    }
    assert_int_equal(held, 2);
    for (uint32_t k = 0; k < 100; k++) assert_int_equal(seen[k], 1);
    assert_int_equal(seen[100], 0); /* a row of one token has nothing to predict */
}

/* The longest row that data.sequence allows: a text of two million tokens fills two rows, and three
 * texts of a third share one. */
TEST(test_million)
{
    enum { LONG = 1 << 20, THIRD = LONG / 3 };
    struct token_store_writer *w;
    struct conversations c;
    struct error e;
    const struct token_store_key key = {1, 2, 3, 4};
    int32_t *said = mem_alloc(2 * LONG * sizeof *said), *out = mem_alloc(5 * LONG * sizeof *out);
    struct token_row long_row = {out, out + LONG, out + 2 * LONG, out + 3 * LONG, 0, 0};
    for (int i = 0; i < 2 * LONG; i++) said[i] = i % 99991;
    assert_int_equal(token_store_create(&w, path, &key, 0, &e), 0);
    for (int i = 0; i < 4; i++) {
        const uint32_t n = i ? THIRD : 2 * LONG;
        const struct new_sample s = {.ids = said, .tokens = n, .answers = (struct byte_range[]){{0, n}},
                                     .n_answers = 1, .file = "a.txt", .line = (uint64_t)i + 1, .flags = STORED_PLAIN};
        if (token_store_add(w, &s, &e)) fail_msg("%s", e.text);
    }
    token_store_report(w)->read = token_store_report(w)->bad[SAMPLE_FINE] = 4;
    if (token_store_finish(w, &e)) fail_msg("%s", e.text);
    const struct conversations_options o = {.sequence = LONG, .packing = true, .max_bad = 1};
    if (conversations_open(&c, path, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(conversations_count(&c), 3);
    for (uint64_t r = 0; r < 3; r++) {
        if (conversations_read(&c, r, &long_row, &e)) fail_msg("%s", e.text);
        assert_int_equal(long_row.tokens, r < 2 ? LONG : 3 * THIRD);
        for (int i = 0; i < (int)long_row.tokens; i++) {
            const int at = r < 2 ? (int)r * LONG + i : i % THIRD, from = r < 2 ? 0 : i - i % THIRD;
            if (long_row.ids[i] != said[at] || long_row.positions[i] != i - from || long_row.ranges[2 * i] != from ||
                long_row.ranges[2 * i + 1] != i + 1)
                fail_msg("row %d, token %d", (int)r, i);
        }
    }
    conversations_close(&c);
    mem_free(said);
    mem_free(out);
}

/* A percentile never lies below a smaller one. */
TEST(test_lengths)
{
    struct token_store s;
    struct error e;
    make_store();
    assert_int_equal(token_store_open(&s, path, &e), 0);
    uint32_t *l = token_store_lengths(&s);
    assert_true(l[0] == 1 && l[MADE - 1] == 30);
    for (uint64_t n = 1; n <= MADE; n++) {
        assert_int_equal(length_at(l, n, 0.5), l[(n + 1) / 2 - 1]);
        assert_true(length_at(l, n, 0.5) <= length_at(l, n, 0.95) && length_at(l, n, 0.95) <= length_at(l, n, 1));
        assert_int_equal(length_at(l, n, 0.95), l[n - 1]);
    }
    assert_int_equal(length_at(l, 0, 0.5), 0);
    mem_free(l);
    token_store_close(&s);
}

/* The two parts of a split have every sample once; round(fraction * n) are held out, and the seed
 * chooses them. */
TEST(test_holdout)
{
    struct conversations part[2];
    struct error e;
    uint32_t seen[MADE] = {0}, used = 0, held = 0, moved = 0;
    make_store();
    for (int i = 0; i < 2; i++) {
        const struct conversations_options o = {.sequence = T, .train_on = TRAIN_ON_ALL, .too_long = TOO_LONG_CUT,
                                                .packing = true, .max_bad = 1, .holdout = 0.3, .split_seed = 5,
                                                .held = i};
        if (conversations_open(&part[i], path, &o, &e)) fail_msg("%s", e.text);
        for (uint64_t k = 0; k < part[i].used.n; k++) seen[part[i].used.at[k].sample]++;
        used += (uint32_t)part[i].used.n;
    }
    assert_int_equal(used, MADE - 2); /* one has a token that nothing predicts, and no answer of another fits */
    for (int i = 0; i < MADE; i++) assert_true(seen[i] <= 1);
    assert_true(part[0].used.n > part[1].used.n);
    assert_true(conversations_fingerprint(&part[0]) != 0);
    for (int i = 0; i < 2; i++) conversations_close(&part[i]);
    bool one, *a = holdout_mark(1000, NULL, 0, 0.123, 5, &one), *b = holdout_mark(1000, NULL, 0, 0.123, 6, &one),
              *c = holdout_mark(1000, NULL, 0, 0.123, 5, &one);
    for (int i = 0; i < 1000; i++) held += a[i], moved += a[i] != b[i];
    assert_int_equal(held, 123);
    assert_true(moved > 100);
    assert_memory_equal(a, c, 1000);
    mem_free(a);
    mem_free(b);
    mem_free(c);
    assert_null(holdout_mark(10, NULL, 0, 0, 5, &one));
}

/* Conversations about one video are on one side, also where some of them cannot be used. */
TEST(test_groups)
{
    enum { N = 200, VIDEOS = 20 };
    struct token_store_writer *w;
    struct error e;
    const struct byte_range answer = {1, 3};
    assert_int_equal(token_store_create(&w, path, &(struct token_store_key){0}, 0, &e), 0);
    for (uint64_t i = 0; i < N; i++) {
        const uint64_t group = i % 3 ? 1 + i % VIDEOS : 0;
        if (i % 17 == 5 && group) token_store_note(w, i, group);
        if (i % 17 == 5) continue;
        const struct new_sample s = {.ids = (int32_t[]){1, 2, 3},
                                     .tokens = 3,
                                     .answers = &answer,
                                     .n_answers = 1,
                                     .file = "a",
                                     .line = i + 1,
                                     .number = i,
                                     .group = group};
        assert_int_equal(token_store_add(w, &s, &e), 0);
    }
    token_store_report(w)->read = N;
    if (token_store_finish(w, &e)) fail_msg("%s", e.text);
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct conversations part[2];
        uint32_t sides[VIDEOS + 1] = {0}, members = 0;
        bool one;
        struct group_member all[N];
        for (uint64_t i = 0; i < N; i++)
            if (i % 3) all[members++] = (struct group_member){1 + i % VIDEOS, i};
        bool *held = holdout_mark(N, all, members, 0.2, seed, &one); /* as questions are read, without a store */
        assert_false(one);
        for (int k = 0; k < 2; k++) {
            if (conversations_open(&part[k], path,
                                   &(struct conversations_options){
                                       .sequence = T, .max_bad = 1, .holdout = 0.2, .split_seed = seed, .held = k},
                                   &e))
                fail_msg("%s", e.text);
            assert_false(part[k].one_group);
            for (uint32_t i = 0; i < part[k].used.n; i++) {
                const struct stored_sample *x = &part[k].store.samples[part[k].used.at[i].sample];
                assert_int_equal(held[x->number], k);
                if (x->group) sides[x->group] |= 1u << k;
            }
        }
        for (int v = 1; v <= VIDEOS; v++) assert_true(sides[v] == 1 || sides[v] == 2);
        assert_true(part[1].used.n > 25 && part[1].used.n < 50);
        conversations_close(&part[0]), conversations_close(&part[1]);
        mem_free(held);
    }
    struct group_member same[N];
    bool one;
    for (uint64_t i = 0; i < N; i++) same[i] = (struct group_member){7, i};
    mem_free(holdout_mark(N, same, N, 0.2, 1, &one));
    assert_true(one);
}

static void refuses(struct conversations_options o, const char *want)
{
    struct conversations c;
    struct error e;
    assert_int_equal(conversations_open(&c, path, &o, &e), PL_USAGE);
    if (!strstr(e.text, want)) fail_msg("\"%s\" does not say \"%s\"", e.text, want);
}

/* The first samples of each file are used, and the fingerprint differs. */
TEST(test_max_samples)
{
    struct conversations c, all;
    struct error e;
    struct conversations_options o = {.sequence = 64, .train_on = TRAIN_ON_ALL, .max_bad = 1};
    make_store();
    if (conversations_open(&all, path, &o, &e)) fail_msg("%s", e.text);
    o.max_samples = 3;
    if (conversations_open(&c, path, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(c.used.n, 3);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(c.used.at[i].sample, i);
    assert_true(conversations_fingerprint(&c) != conversations_fingerprint(&all));
    conversations_close(&c);
    conversations_close(&all);
}

TEST(test_refuses)
{
    make_store();
    refuses((struct conversations_options){.sequence = T, .max_bad = 0.1},
            "1 of 8 samples cannot be used: 1 unknown role (chats.jsonl:9");
    refuses((struct conversations_options){.sequence = T, .max_bad = 1, .vocabulary = 510},
            "chats.jsonl:6: its token 10 has the id 510, but the model's vocabulary has 510 ids");
    refuses((struct conversations_options){.sequence = 2, .max_bad = 1, .too_long = TOO_LONG_DROP},
            "all 6 samples are longer than data.sequence, 2 tokens; the longest has 30");
}

static int make_path(void **state)
{
    int rc = make_folder(state);
    snprintf(path, sizeof path, "%s/store", folder);
    return rc;
}

MAIN(make_path, remove_folder)
