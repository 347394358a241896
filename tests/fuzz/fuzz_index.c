/*
 * fuzz_index.c: any bytes as the index beside a shard, FILE.idx. The facts that tie an index to its
 * shard and the checksum are corrected first, so that the checks after them are tested. Every pair
 * is read.
 */
#include "base/coding.h"
#include "data/formats/sa1b.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The beginning of an index: magic, version, checksum, then size, time and hash of the shard; a
 * report follows. */
enum { CRC_AT = 12, FACTS = 40 };
static char tar_path[256], *sound;
static size_t sound_n;

/* A tar of two empty members and its index. */
static void begin(void)
{
    static uint8_t tar[2048];
    struct shard s;
    struct error e;
    for (int i = 0; i < 2; i++) {
        char *h = (char *)tar + 512 * i;
        unsigned sum = 0;
        strcpy(h, i ? "a.json" : "a.jpg");
        strcpy(h + 100, "0000644"), strcpy(h + 108, "0000000"), strcpy(h + 116, "0000000"),
            strcpy(h + 124, "00000000000"), strcpy(h + 136, "00000000000");
        memset(h + 148, ' ', 8), h[156] = '0', memcpy(h + 257, "ustar\00000", 8);
        for (int k = 0; k < 512; k++) sum += (uint8_t)h[k];
        snprintf(h + 148, 8, "%06o", sum);
    }
    snprintf(tar_path, sizeof tar_path, "%s", fuzz_put("a.tar", tar, sizeof tar));
    CHECK(!shard_open(&s, tar_path, &e) && s.n == 1, "%s", e.text);
    shard_close(&s);
    char path[288];
    snprintf(path, sizeof path, "%s.idx", tar_path);
    CHECK(!file_read(path, 1 << 20, &sound, &sound_n, &e) && sound_n > FACTS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct shard s;
    struct error e;
    if (fuzz_begin()) begin();
    const size_t n = FACTS + size;
    char *index = mem_alloc(n);
    memcpy(index, sound, FACTS);
    memcpy(index + FACTS, data, size);
    memset(index + CRC_AT, 0, 4);
    uint32_t crc = crc32c(0, index, n);
    memcpy(index + CRC_AT, &crc, 4);
    fuzz_put("a.tar.idx", index, n);
    mem_free(index);
    CHECK(!shard_open(&s, tar_path, &e), "%s", e.text);
    for (uint32_t i = 0; i < s.n && i < 100; i++) {
        char to[4096];
        size_t got;
        CHECK(strlen(shard_key(&s, i)) < s.names_n);
        for (int half = 0; half < 2; half++) shard_read(&s, i, half, to, sizeof to, &got, &e);
        shard_prefetch(&s, i);
    }
    shard_close(&s);
    return 0;
}
