/*
 * test_links.c: the fit of measured links finds the link that made the samples, and a profile keeps
 * it.
 */
#include "calibrate/calibrate.h"
#include "cost/calibration.h"
#include "cost/links.h"
#include "cost/profile.h"

#include "harness.h"

enum { SAMPLES = 14 };

/* Gathers of 1 KiB to 4 MiB with 1 and `most` peers over a link; every other one is off by a
 * factor. */
static void make(struct link_sample *s, const struct link *l, int most, double off)
{
    for (int i = 0; i < SAMPLES; i++) {
        s[i] = (struct link_sample){.peers = i < SAMPLES / 2 ? 1 : most,
                                    .part = (double)(1024 << 2 * (i % (SAMPLES / 2))),
                                    .rest = 2e-6};
        s[i].seconds =
            (s[i].rest + l->latency + s[i].peers * (l->peer + s[i].part / l->bandwidth)) * (i % 2 ? off : 1 / off);
    }
}

static void assert_near(double a, double b, double part)
{
    if (!(a > b * (1 - part) && a < b * (1 + part))) fail_msg("%g, expected %g", a, b);
}

TEST(test_fit)
{
    const struct link links[] = {{.latency = 1e-5, .peer = 4e-6, .bandwidth = 5e9},
                                 {.latency = 5e-5, .peer = 1e-5, .bandwidth = 1.2e8}};
    for (size_t i = 0; i < COUNT(links); i++) {
        struct link_sample s[SAMPLES];
        struct link found = {0};
        make(s, &links[i], 7, 1);
        links_fit(s, SAMPLES, &found);
        assert_near(found.latency, links[i].latency, 1e-6);
        assert_near(found.peer, links[i].peer, 1e-6);
        assert_near(found.bandwidth, links[i].bandwidth, 1e-6);
        make(s, &links[i], 7, 1.2); /* noise */
        links_fit(s, SAMPLES, &found);
        assert_near(found.bandwidth, links[i].bandwidth, 0.25);
    }
}

/* With one number of peers latency and cost of a peer cannot be told apart: all of it is the
 * peer's. */
TEST(test_two_ranks)
{
    const struct link l = {.latency = 1e-5, .peer = 4e-6, .bandwidth = 5e9};
    struct link_sample s[SAMPLES];
    struct link found = {0};
    make(s, &l, 1, 1);
    links_fit(s, SAMPLES, &found);
    assert_near(found.peer, l.latency + l.peer, 1e-6);
    assert_near(found.bandwidth, l.bandwidth, 1e-6);
    assert_true(found.latency == 0);
}

/* Collectives that are faster than their kernels' predicted accesses: nothing is negative, and the
 * rate is one that was seen. */
TEST(test_no_cost)
{
    struct link_sample s[SAMPLES];
    struct link found = {0};
    make(s, &(struct link){.latency = 1e-5, .peer = 4e-6, .bandwidth = 5e9}, 3, 1);
    for (int i = 0; i < SAMPLES; i++) s[i].rest = 2 * s[i].seconds;
    links_fit(s, SAMPLES, &found);
    assert_true(found.latency == 0 && found.peer == 0 && found.bandwidth > 1e9 && found.bandwidth < 5e9);
}

TEST(test_profile)
{
    struct calibration *c = calloc(1, sizeof *c), *read = calloc(1, sizeof *read);
    struct profile p, back;
    struct text text = {0};
    struct error e = {0};
    profile_default(&p, DEVICE_CPU, 2);
    snprintf(c->cpu, sizeof c->cpu, "any"), snprintf(c->isa, sizeof c->isa, "any"),
        snprintf(c->date, sizeof c->date, "today");
    p.measured = c;
    p.cache_bandwidth = p.cache_bytes = 1e9;
    p.link[LINK_REMOTE] = (struct link){.latency = 1e-5, .peer = 4e-6, .bandwidth = 5e9, .ranks = 4};
    profile_write(&p, &text);
    if (profile_parse(text.at, text.n, &back, read, &e)) fail_msg("%s", e.text);
    assert_int_equal(back.link[LINK_REMOTE].ranks, 4);
    assert_true(back.link[LINK_REMOTE].bandwidth == 5e9 && back.link[LINK_REMOTE].peer == 4e-6 &&
                back.link[LINK_REMOTE].latency == 1e-5);
    assert_int_equal(back.link[LINK_LOCAL].ranks, 0);
    text_free(&text);
    free(c);
    free(read);
}

MAIN(NULL, NULL)
