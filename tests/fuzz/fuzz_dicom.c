/*
 * fuzz_dicom.c: any bytes as a DICOM file: its header, and its pixels in every encoding.
 */

#include "data/volumes/dicom.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dicom_header h;
    struct error e = {0};
    if (dicom_parse(&h, &(struct dicom_source){.bytes = data, .n = size}, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
        return 0;
    }
    if (!h.rows || dicom_decoded_bytes(&h) > MOST) return 0;
    CHECK(h.pixels <= size && h.pixels_n <= size - h.pixels, "pixels outside of the file");
    uint8_t *file = h.pixels_n ? mem_copy(data + h.pixels, (size_t)h.pixels_n) : mem_alloc(1);
    void *to = mem_alloc(dicom_decoded_bytes(&h));
    const size_t scratch_n = dicom_scratch(&h);
    void *scratch = mem_alloc(scratch_n + 1);
    CHECK(!h.lut.n || (h.lut.at <= size && dicom_lut_bytes(&h) <= size - h.lut.at), "a LUT outside of the file");
    if (dicom_decode(&h, file, data + h.lut.at, scratch, to, &e)) CHECK(e.text[0], "a failure without a message");
    mem_free(file);
    mem_free(scratch);
    mem_free(to);
    return 0;
}
