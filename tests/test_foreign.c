/*
 * test_foreign.c: the rows of foreign.def agree with ours: each names a key that exists, and the values that a row
 * can give by itself are allowed there. tests/run_config_from.sh tests what files become.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "config/config_rows.h"
#include "config/foreign_rows.h"

static const struct foreign_row rows[] = {
#define PROGRAM(...)
#define FOREIGN(program, key, standard, how, ours, detail) {PROGRAM_##program, key, standard, HOW_##how, ours, detail},
#include "config/foreign.def"
#undef PROGRAM
#undef FOREIGN
};

static void test_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct foreign_row *r = &rows[i];
        if (*r->ours && config_find(r->ours) < 0) fail_msg("%s: there is no key %s", r->key, r->ours);
        if ((r->how == HOW_NONE || r->how == HOW_ONLY || r->how == HOW_ONLY_TRUE) != !*r->ours && r->how < HOW_MICRO) fail_msg("%s: its key of ours is \"%s\"", r->key, r->ours);
        if ((r->how == HOW_NONE || r->how == HOW_ONLY || r->how == HOW_WORD || r->how == HOW_IF_TRUE) && !*r->detail) fail_msg("%s: no detail", r->key);
        for (size_t k = 0; k < i; k++)
            if (rows[k].program == r->program && !strcmp(rows[k].key, r->key)) fail_msg("%s of %s has two rows", r->key, foreign_name(r->program));
    }
}

static void accepts(const struct foreign_row *r, const char *value)
{
    struct config c;
    struct error e = {0};
    config_init(&c);
    if (config_assign(&c, r->ours, value, &e)) fail_msg("%s of %s: %s", r->key, foreign_name(r->program), e.text);
    config_free(&c);
}

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct foreign_row *r = &rows[i];
        if (r->how == HOW_VALUE && *r->standard) accepts(r, r->standard);
        if (r->how == HOW_IF_TRUE) accepts(r, r->detail);
        for (const char *s = r->detail; r->how == HOW_WORD && *s; s += strspn(s, " ")) {
            char word[64];
            if (sscanf(s, "%*[^= ]=%63[^ ]", word) != 1) fail_msg("%s: %s", r->key, s);
            accepts(r, word);
            s += strcspn(s, " ");
        }
    }
}

/* A file belongs to the program that knows most of its keys. */
static void test_programs(void **state)
{
    (void)state;
    static const struct {
        const char *text, *program;
    } cases[] = {
        {"{output_dir: a, bf16: true}", "Hugging Face TrainingArguments"},
        {"{output_dir: a, bf16: true, max_length: 8, packing: true}", "TRL"},
        {"{stage: sft, template: a, packing: true, max_length: 8}", "LLaMA-Factory"},
        {"{fp16: {enabled: true}}", "DeepSpeed"},
        {"{mixed_precision: 'no', num_processes: 2}", "Accelerate"},
        {"{training: {batch_size: 4, lr: 1e-4}}", "a PyTorch training script"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct foreign f = {0};
        struct error e = {0};
        if (foreign_read_text(&f, cases[i].text, strlen(cases[i].text), "a.yaml", &e)) fail_msg("%s", e.text);
        assert_int_equal(f.files.n, 1);
        assert_string_equal(f.files.at[0].program, cases[i].program);
        foreign_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys), cmocka_unit_test(test_values), cmocka_unit_test(test_programs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
