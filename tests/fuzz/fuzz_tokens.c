/*
 * fuzz_tokens.c: any bytes as a token file: .npy, .safetensors, llm.c's and raw files. The first
 * byte chooses the name, the second data.token_dtype. Samples of an accepted file are read; each id
 * is in the vocabulary.
 */
#include "data/text/tokens.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEQUENCE = 3, VOCABULARY = 50000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"a.npy", "a.safetensors", "a.bin", "a.tokens", "a", "a.bytes"};
    struct tokens t;
    struct error e;
    fuzz_begin();
    if (size < 2) return 0;
    const unsigned which = data[0] % COUNT(names);
    char *path = mem_string(fuzz_put(names[which], data + 2, size - 2));
    struct tokens_options o = {.paths = &path, .n_paths = 1, .sequence = SEQUENCE, .dtype = data[1] % (TOKENS_I64 + 1),
                               .vocab_size = VOCABULARY, .bytes = which == 5};
    if (!tokens_open(&t, &o, &e)) {
        uint64_t hash;
        CHECK(tokens_count(&t) <= size && !tokens_fingerprint(&t, &hash, &e) && hash);
        for (uint64_t i = 0; i < tokens_count(&t) && i < 1000; i++) {
            int32_t row[SEQUENCE];
            if (tokens_read(&t, i, row, &e)) continue;
            for (int k = 0; k < SEQUENCE; k++) CHECK(row[k] >= 0 && row[k] < VOCABULARY);
        }
        tokens_close(&t);
    }
    mem_free(path);
    return 0;
}
