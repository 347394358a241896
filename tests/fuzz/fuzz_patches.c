/*
 * fuzz_patches.c: any text as preprocessor_config.json of Qwen-VL; the first byte chooses the
 * family and whether it is of videos, and the next ones sizes and rates. Rules that are accepted
 * find grids for sizes of any kind, choose frames, and make patches of small images. Built like
 * fuzz_json.c.
 */
#include "data/images/patches.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 22, HEAD = 10, FRAMES = 300 };

static void process(const struct patch_rules *p, const struct patch_grid *g, uint32_t n, uint32_t width,
                    uint32_t height)
{
    const uint64_t room = patch_scratch(p, g, width, height), patches = patch_grid_patches(g);
    CHECK(patch_grid_tokens(p, g) * p->merge * p->merge == patches && patches, "%llu patches",
          (unsigned long long)patches);
    if (room > MOST || (uint64_t)width * height > MOST || patches > MOST / patch_bytes(p)) return;
    uint8_t *rgb = mem_alloc((size_t)width * height * 3);
    void *scratch = mem_alloc(room);
    uint8_t *to = mem_alloc(patches * patch_bytes(p));
    if (n) patch_frame(p, g, n - 1, n, rgb, width, height, scratch, room, to);
    else patch_image(p, g, rgb, width, height, scratch, room, to);
    mem_free(rgb);
    mem_free(scratch);
    mem_free(to);
}

static void try_size(const struct patch_rules *p, uint32_t n, uint32_t width, uint32_t height)
{
    struct patch_grid g;
    struct error e = {0};
    if (n ? patch_grid_video(p, n, width, height, &g, &e) : patch_grid_image(p, width, height, &g, &e))
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
    else process(p, &g, n, width, height);
}

static void try_video(const struct patch_rules *p, const struct video_facts *v)
{
    uint32_t chosen[FRAMES], n;
    double seconds[FRAMES];
    struct error e = {0};
    if (patch_frames_choose(p, v, chosen, &n, &e)) return;
    CHECK(n && n <= v->frames, "%u of %u frames", n, v->frames);
    for (uint32_t i = 0; i < n; i++)
        CHECK(chosen[i] < v->frames && (!i || chosen[i] > chosen[i - 1]), "frame %u is number %u", i, chosen[i]);
    patch_grid_seconds(p, v, chosen, n, seconds);
    CHECK(patch_seconds_per_grid(p, v, n) > 0, "no time");
    try_size(p, n, 9, 7);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct patch_rules p;
    struct error e = {0};
    uint16_t x[4];
    if (size < HEAD) return 0;
    const bool videos = data[0] & 2;
    memcpy(x, data + 2, sizeof x);
    const struct patch_overrides o = {.max_pixels = data[1] & 1 ? x[0] : 0, .fps = data[1] & 2 ? x[1] / 100.0 : 0,
                                      .max_frames = data[1] & 4 ? x[2] : 0};
    if (patch_rules_parse(&p, (const char *)data + HEAD, size - HEAD, "p.json", (enum patch_family)(data[0] & 1),
                          videos, &o, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
        return 0;
    }
    try_size(&p, videos ? 3 : 0, 1, 1);
    try_size(&p, videos ? 2 : 0, 40, 3);
    try_size(&p, videos ? x[3] : 0, x[0], x[1]);
    try_size(&p, videos ? UINT32_MAX : 0, UINT32_MAX, UINT32_MAX - x[0]);
    if (videos) try_video(&p, &(struct video_facts){.frames = x[3] % FRAMES + 1, .fps = x[2] / 64.0});
    return 0;
}
