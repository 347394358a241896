/*
 * fuzz_nifti.c: any bytes as a NIfTI file, or, if the first byte is odd, as a .nii.gz: what opens
 * can be read slice by slice, along every axis.
 */
#include "data/volumes/nifti.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct nifti_header h;
    struct error e = {0};
    if (fuzz_begin()) setenv("XDG_CACHE_HOME", fuzz_dir, 1);
    if (!size) return 0;
    if (nifti_parse(&h, data + 1, size - 1, &e)) CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
    const char *path = fuzz_put(data[0] & 1 ? "a.nii.gz" : "a.nii", data + 1, size - 1);
    for (int axis = 0; axis < 3; axis++) {
        struct volume v;
        if (volume_open(&v, path, &(struct volume_options){.axis = (enum volume_axis)axis}, &e)) {
            CHECK(e.text[0], "a failure without a message");
            continue;
        }
        const size_t room = volume_room(&v, false);
        void *to = room <= MOST ? mem_alloc(room) : NULL;
        for (uint32_t k = 0; to && k < v.slices && k < 3; k++) {
            struct plane p;
            CHECK(!volume_read(&v, k, v.modalities - 1, false, to, room, &p, &e), "%s", e.text);
            CHECK(p.w == v.w && p.h == v.h, "a slice of another size");
        }
        mem_free(to);
        struct error ignored;
        if (data[0] & 1) tree_remove(v.data, &ignored);
        volume_close(&v);
    }
    return 0;
}
