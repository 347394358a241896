/*
 * fuzz_pth.c: any bytes as a PyTorch checkpoint. An opened checkpoint must be readable: every
 * element of every tensor lies inside the input (else the sanitizer reports the read), and every
 * tensor is found by its name. Built like fuzz_json.c.
 */

#include "io/pth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The limit of bytes read per input: enough for each tensor of the corpus, and quick. */
enum { READ_MOST = 1 << 22 };

static void read_all(const struct pth *p)
{
    uint64_t left = READ_MOST;
    for (uint32_t i = 0; i < p->tensors.n; i++) {
        const struct pth_tensor *t = &p->tensors.at[i];
        uint64_t bytes = (uint64_t)pth_elements(t) * dtype_size(t->dtype);
        CHECK(pth_find(p, t->name) == t, "a tensor that is not found by its name");
        if (bytes > left) continue;
        left -= bytes;
        void *to = mem_alloc(bytes);
        pth_read(t, to);
        mem_free(to);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pth p;
    struct error e = {0};
    if (!pth_open_memory(&p, data, size, &e)) {
        read_all(&p);
        pth_close(&p);
    } else CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
    return 0;
}
