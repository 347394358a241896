/*
 * fuzz_sentencepiece.c: any bytes as a tokenizer.model. One that opens encodes and decodes
 * (tokenizing.h).
 */
#include "tokenizing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_begin();
    fuzz_tokenize(fuzz_put("tokenizer.model", data, size));
    return 0;
}
