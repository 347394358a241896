/*
 * fuzz_tokenizer.c: any bytes as a tokenizer.json. One that opens encodes and decodes
 * (tokenizing.h).
 */
#include "tokenizing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_begin();
    fuzz_tokenize(fuzz_put("tokenizer.json", data, size));
    return 0;
}
