/*
 * test_library_abi.c: what a program that was built with an earlier plimsoll.h relies on: offsets
 * of members, values of enums, and structs that are shorter or longer than the library's.
 *
 * A row of these tables never changes. A new member goes to the end of its struct, and gets a row;
 * a new value gets the next number. Only with another soname may it be otherwise.
 */
#include "library.h"

#include <stddef.h>

struct fact {
    const char *name;
    size_t is, was;
};
#define SIZE(type, was) {"size of " #type, sizeof(struct type), was},
#define WHOLE(type, was) {"the whole of " #type, sizeof(struct type), was},
#define AT(type, member, was) {#type "." #member, offsetof(struct type, member), was},
#define IS(name, was) {#name, (size_t)(name), (size_t)(was)},

/* The sizes are those of this version: they may grow, but for entries of arrays (WHOLE). */
static const struct fact facts[] = {
    WHOLE(pl_technique, 16) AT(pl_technique, name, 0) AT(pl_technique, value, 8)
    SIZE(pl_plan_info, 872) AT(pl_plan_info, size, 0) AT(pl_plan_info, fits, 8) AT(pl_plan_info, arena_bytes, 16)
    AT(pl_plan_info, host_bytes, 24) AT(pl_plan_info, lower_bound_bytes, 32)
    AT(pl_plan_info, smallest_budget_bytes, 40) AT(pl_plan_info, bytes, 48) AT(pl_plan_info, parameters, 304)
    AT(pl_plan_info, trainable, 312) AT(pl_plan_info, effective_batch, 320) AT(pl_plan_info, micro_batch, 328)
    AT(pl_plan_info, accumulation, 336) AT(pl_plan_info, predicted_seconds, 344) AT(pl_plan_info, techniques, 352)
    AT(pl_plan_info, technique, 360)
    SIZE(pl_port, 88) AT(pl_port, size, 0) AT(pl_port, name, 8) AT(pl_port, type, 16) AT(pl_port, rank, 20)
    AT(pl_port, dim, 24) AT(pl_port, bytes, 72) AT(pl_port, axis, 80) AT(pl_port, used, 84)
    SIZE(pl_step_info, 80) AT(pl_step_info, size, 0) AT(pl_step_info, step, 8) AT(pl_step_info, steps, 16)
    AT(pl_step_info, loss, 24) AT(pl_step_info, learning_rate, 32) AT(pl_step_info, gradient_norm, 40)
    AT(pl_step_info, seconds, 48) AT(pl_step_info, units, 56) AT(pl_step_info, loss_scale, 64)
    AT(pl_step_info, skipped, 72)
    SIZE(pl_parameter, 88) AT(pl_parameter, size, 0) AT(pl_parameter, name, 8) AT(pl_parameter, rank, 16)
    AT(pl_parameter, dim, 24) AT(pl_parameter, elements, 72) AT(pl_parameter, frozen, 80) AT(pl_parameter, type, 84)
    SIZE(pl_generation, 104) AT(pl_generation, size, 0) AT(pl_generation, max_new, 8) AT(pl_generation, context, 16)
    AT(pl_generation, chunk, 24) AT(pl_generation, temperature, 32) AT(pl_generation, top_k, 40)
    AT(pl_generation, top_p, 48) AT(pl_generation, repetition_penalty, 56) AT(pl_generation, seed, 64)
    AT(pl_generation, ends, 72) AT(pl_generation, n_ends, 80) AT(pl_generation, stops, 88)
    AT(pl_generation, n_stops, 96)
    SIZE(pl_answer, 80) AT(pl_answer, size, 0) AT(pl_answer, ids, 8) AT(pl_answer, count, 16) AT(pl_answer, text, 24)
    AT(pl_answer, bytes, 32) AT(pl_answer, end, 40) AT(pl_answer, prompt_seconds, 48) AT(pl_answer, seconds, 56)
    AT(pl_answer, arena_bytes, 64) AT(pl_answer, kv_cache_bytes, 72)
    SIZE(pl_image, 40) AT(pl_image, size, 0) AT(pl_image, path, 8) AT(pl_image, rgb, 16) AT(pl_image, width, 24)
    AT(pl_image, height, 32)
    SIZE(pl_prompt, 40) AT(pl_prompt, size, 0) AT(pl_prompt, points, 8) AT(pl_prompt, labels, 16)
    AT(pl_prompt, n_points, 24) AT(pl_prompt, box, 32)
    SIZE(pl_masks, 64) AT(pl_masks, size, 0) AT(pl_masks, width, 8) AT(pl_masks, height, 16) AT(pl_masks, prompts, 24)
    AT(pl_masks, candidates, 32) AT(pl_masks, scores, 40) AT(pl_masks, best, 48) AT(pl_masks, arena_bytes, 56)
    SIZE(pl_scores, 72) AT(pl_scores, size, 0) AT(pl_scores, loss, 8) AT(pl_scores, tokens, 16)
    AT(pl_scores, samples, 24) AT(pl_scores, masks, 32) AT(pl_scores, iou, 40) AT(pl_scores, dice, 48)
    AT(pl_scores, seconds, 56) AT(pl_scores, arena_bytes, 64)
    SIZE(pl_key, 56) AT(pl_key, size, 0) AT(pl_key, name, 8) AT(pl_key, type, 16) AT(pl_key, standard, 24)
    AT(pl_key, allowed, 32) AT(pl_key, needs, 40) AT(pl_key, doc, 48)
    SIZE(pl_op_info, 56) AT(pl_op_info, size, 0) AT(pl_op_info, name, 8) AT(pl_op_info, signature, 16)
    AT(pl_op_info, attributes, 24) AT(pl_op_info, doc, 32) AT(pl_op_info, inputs_least, 40)
    AT(pl_op_info, inputs_most, 44) AT(pl_op_info, outputs, 48) AT(pl_op_info, in_models, 52)
    WHOLE(pl_block, 40) AT(pl_block, name, 0) AT(pl_block, offset, 8) AT(pl_block, bytes, 16) AT(pl_block, from, 24)
    AT(pl_block, to, 28) AT(pl_block, kind, 32) AT(pl_block, persistent, 36)
    WHOLE(pl_token, 12) AT(pl_token, id, 0) AT(pl_token, begin, 4) AT(pl_token, end, 8)
    IS(PL_OK, 0) IS(PL_FAIL, 1) IS(PL_USAGE, 2) IS(PL_NOFIT, 3) IS(PL_STOPPED, 4) IS(PL_LOG_NOTE, 0)
    IS(PL_LOG_WARNING, 1) IS(PL_LOG_PROGRESS, 2) IS(PL_MAX_RANK, 6) IS(PL_F32, 1) IS(PL_I32, 2) IS(PL_F64, 3)
    IS(PL_U8, 4) IS(PL_I64, 5) IS(PL_F16, 6) IS(PL_BF16, 7) IS(PL_ZEROS, 0) IS(PL_ONES, 1) IS(PL_NORMAL, 2)
    IS(PL_SHARED, -1) IS(PL_BLOCK, 1) IS(PL_ROWS, 2) IS(PL_GELU, 0) IS(PL_GELU_TANH, 1) IS(PL_QUICK_GELU, 2)
    IS(PL_RELU, 3) IS(PL_SIGMOID, 4) IS(PL_SILU, 5) IS(PL_TANH, 6) IS(PL_EXP, 7) IS(PL_PARAMETERS, 0)
    IS(PL_MASTERS, 1) IS(PL_GRADIENTS, 2) IS(PL_OPTIMIZER, 3) IS(PL_KV_CACHE, 4) IS(PL_INPUTS, 5) IS(PL_CONSTANTS, 6)
    IS(PL_STEP, 7) IS(PL_OUTPUTS, 8) IS(PL_STAGING, 9) IS(PL_ACTIVATIONS, 10) IS(PL_WORKSPACE, 11)
    IS(PL_COMMUNICATION, 12) IS(PL_KINDS_MOST, 32) IS(PL_TECHNIQUES, 32) IS(PL_END_EOS, 0) IS(PL_END_STOP, 1)
    IS(PL_END_LENGTH, 2) IS(PL_END_CALLBACK, 3)
};

TEST(test_offsets)
{
    if (sizeof(void *) != 8) skip();
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        const bool may_grow = !strncmp(facts[i].name, "size of", 7);
        if (facts[i].is != facts[i].was && !(may_grow && facts[i].is > facts[i].was))
            fail_msg("%s is %zu, and was %zu", facts[i].name, facts[i].is, facts[i].was);
    }
}

/* An earlier program has a shorter struct: what is behind it is not touched. */
TEST(test_shorter)
{
    struct pl_session *s = open_f32();
    ok(s, pl_set(s, "model.preset", "llama-tiny"));
    struct {
        struct pl_plan_info plan;
        unsigned char behind[64];
    } x = {.plan = {.size = offsetof(struct pl_plan_info, arena_bytes) + sizeof x.plan.arena_bytes}};
    memset((char *)&x + x.plan.size, 0xa5, sizeof x - x.plan.size);
    ok(s, pl_plan(s, &x.plan));
    assert_true(x.plan.fits && x.plan.arena_bytes > 0);
    for (size_t i = x.plan.size; i < sizeof x; i++) assert_int_equal(((unsigned char *)&x)[i], 0xa5);
    assert_null(pl_technique_value(&x.plan, "precision"));
    pl_close(s);
}

/* A later program has a longer one: members that this library does not know are 0. */
TEST(test_longer)
{
    struct pl_session *s = open_f32();
    ok(s, pl_set(s, "model.preset", "llama-tiny"));
    struct {
        struct pl_plan_info plan;
        unsigned char later[64];
    } x;
    memset(&x, 0xa5, sizeof x);
    x.plan.size = sizeof x;
    ok(s, pl_plan(s, &x.plan));
    assert_int_equal(x.plan.size, sizeof x);
    for (size_t i = 0; i < sizeof x.later; i++) assert_int_equal(x.later[i], 0);
    x.plan.size = 0;
    refused(s, pl_plan(s, &x.plan), "PL_INIT");
    pl_close(s);
}

MAIN(NULL, NULL)
