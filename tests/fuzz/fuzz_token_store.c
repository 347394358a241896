/*
 * fuzz_token_store.c: any bytes as a token store. The first byte chooses the options of rows; sizes
 * and checksums are repaired, so that the index itself is tested. Rows of an accepted store have
 * ids, labels and ranges within bounds.
 */
#include "base/coding.h"
#include "data/text/conversations.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { T = 12, VOCABULARY = 1000, FEATURES = 2, IMAGES = 2, VOLUMES = 1 };

static void repair(char *bytes, size_t n)
{
    struct token_store_header *h = (void *)bytes;
    memcpy(h->magic, TOKEN_STORE_MAGIC, sizeof h->magic);
    h->version = TOKEN_STORE_VERSION;
    h->bytes = n;
    h->tokens %= n;
    h->samples %= 8;
    h->answers %= 16;
    h->images %= 8;
    h->members %= 8;
    const uint64_t ids = align_up(h->tokens * 4, 8), index = h->samples * sizeof(struct stored_sample) +
                                                             (h->answers + h->images) * sizeof(struct byte_range) +
                                                             h->members * sizeof(struct group_member);
    if (TOKEN_STORE_DATA + ids + index < n) {
        h->names = n - TOKEN_STORE_DATA - ids - index;
        bytes[n - 1] = 0;
        h->tokens_sum = crc32c(0, bytes + TOKEN_STORE_DATA, ids);
        h->index_sum = crc32c(0, bytes + TOKEN_STORE_DATA + ids, n - TOKEN_STORE_DATA - ids);
    }
    h->header_sum = crc32c(0, h, offsetof(struct token_store_header, header_sum));
}

/* Rows have room for their images, and each image of a sample is found. */
static void check_images(const struct conversations *c)
{
    for (uint64_t r = 0; r < conversations_count(c); r++) {
        const struct row_samples row = conversations_samples(c, r);
        uint32_t all = 0, volumes = 0;
        for (uint32_t k = 0; k < row.n; k++) {
            const struct used_sample *u = &c->used.at[row.at[k]];
            for (uint32_t i = 0; i < u->size.images;) {
                const struct sample_image x = conversations_image(c, u, i);
                CHECK(x.count && strlen(x.reference) < c->store.header->names);
                i += x.count;
            }
            all += u->size.images;
            struct sample_media m;
            for (uint32_t i = 0; conversations_media(c, u, i, &m); i++) {
                CHECK(m.modality < 1 && m.tokens.end <= u->size.tokens);
                volumes += m.modality >= 0;
            }
        }
        CHECK(all <= IMAGES && volumes <= VOLUMES);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int32_t ids[T], labels[T], positions[T], ranges[2 * T];
    struct token_row row = {ids, labels, positions, ranges, 0, 0};
    struct conversations c;
    struct error e = {0};
    fuzz_begin();
    if (!size) return 0;
    const size_t n = size - 1;
    char *bytes = mem_alloc(align_up(n + 1, 8));
    memcpy(bytes, data + 1, n);
    if (n >= TOKEN_STORE_DATA && data[0] & 1) repair(bytes, n);
    const char *path = fuzz_put("store", bytes, n);
    const int32_t token = n >= sizeof(struct token_store_header)
                              ? ((const struct token_store_header *)(const void *)bytes)->image_token
                              : 0;
    mem_free(bytes);
    struct conversations_options o = {.images = {token, FEATURES, IMAGES, data[0] >> 5 & 1},
                                            .sequence = T,
                                            .train_on = (data[0] >> 1) % 3,
                                            .too_long = data[0] >> 3 & 1,
                                            .packing = data[0] >> 4 & 1,
                                            .vocabulary = VOCABULARY,
                                            .max_bad = 1};
    if (data[0] >> 6 & 1) {
        o.images.modalities = (struct modality_list){1, {{.name = "T1", .tokens = FEATURES, .values = 1}}};
        o.images.most_volumes = VOLUMES;
    }
    if (conversations_open(&c, path, &o, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0]);
        return 0;
    }
    for (uint64_t r = 0; r < conversations_count(&c); r++) {
        CHECK(!conversations_read(&c, r, &row, &e) && row.tokens && row.tokens <= T && row.labelled < row.tokens);
        for (int t = 0; t < T; t++)
            CHECK(((ids[t] >= 0 && ids[t] < VOCABULARY) || ids[t] == token) &&
                  (labels[t] == -100 || labels[t] == ids[t]) && ranges[2 * t] <= t && ranges[2 * t + 1] <= t + 1);
    }
    check_images(&c);
    conversations_close(&c);
    return 0;
}
