/*
 * forge_volumes.c: writes conversations with volumes for test scripts:
 *
 *     forge_volumes DIR SAMPLES SEED
 *
 *     DIR/chats.json             in turns a T1, a series, both, and none: "how many?", and the bright cells
 *                                as answer; by modality_paths, or as images with their modality
 *     DIR/volumes/I_T1.nii       8 x 8 x 8 voxels: eight cells of 4 x 4 x 4, each bright or dark
 *     DIR/volumes/I_rsfMRI.nii   four of them, one after the other, the same but for noise
 *     DIR/flat.nii, DIR/holes.nii    a file of two dimensions; a volume with values that are no numbers
 */
#include <math.h>

#include "base/random.h"
#include "io/file.h"

enum { SIDE = 8, CELL = 4, TIMES = 4, HEAD = 352, UINT8 = 2, FLOAT32 = 16 };

static uint32_t draw(uint64_t key, uint64_t *at, uint32_t n) { return (uint32_t)(random_bits(key, (*at)++) % n); }

/* Fills in the header of a NIfTI-1 file, with voxels of 1 mm. */
static void put_header(char head[HEAD], int axes, int16_t times, int16_t type, int16_t bits)
{
    const int32_t size = 348;
    const int16_t dim[8] = {(int16_t)axes, SIDE, SIDE, (int16_t)(axes > 2 ? SIDE : 1), times, 1, 1, 1}, form = 1;
    const float pixdim[8] = {1, 1, 1, 1, 1, 1, 1, 1}, offset = HEAD, slope = 1,
                rows[12] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};
    memset(head, 0, HEAD);
    memcpy(head, &size, sizeof size), memcpy(head + 40, dim, sizeof dim);
    memcpy(head + 70, &type, sizeof type), memcpy(head + 72, &bits, sizeof bits);
    memcpy(head + 76, pixdim, sizeof pixdim), memcpy(head + 108, &offset, sizeof offset);
    memcpy(head + 112, &slope, sizeof slope), memcpy(head + 254, &form, sizeof form);
    memcpy(head + 280, rows, sizeof rows), memcpy(head + 344, "n+1", 4);
}

/* Writes a volume, or several one after the other, and counts its bright cells. */
static int write_volume(const char *path, uint64_t key, int times, uint32_t *bright, struct error *e)
{
    char file[HEAD + TIMES * SIDE * SIDE * SIDE];
    uint64_t at = 1;
    uint32_t on[8];
    put_header(file, times > 1 ? 4 : 3, (int16_t)times, UINT8, 8);
    for (int cell = 0; cell < 8; cell++) *bright += on[cell] = draw(key, &at, 2);
    for (int i = 0; i < times * SIDE * SIDE * SIDE; i++) {
        const int x = i % SIDE / CELL, y = i / SIDE % SIDE / CELL, z = i / SIDE / SIDE % SIDE / CELL;
        file[HEAD + i] = (char)(uint8_t)(on[4 * z + 2 * y + x] * 150 + draw(key, &at, 100));
    }
    return file_write_atomic(path, file, (size_t)(HEAD + times * SIDE * SIDE * SIDE), e);
}

static int write_sample(const char *dir, uint32_t i, uint64_t key, struct text *out, struct error *e)
{
    static const char *const names[] = {"T1", "rsfMRI"};
    const bool has[] = {i % 4 == 0 || i % 4 == 2, i % 4 == 1 || i % 4 == 2}, map = i % 8 < 4;
    uint32_t bright = 0, n = 0;
    struct text list = {0};
    int rc = PL_OK;
    for (int k = 0; k < 2 && !rc; k++) {
        char path[4096];
        if (!has[k]) continue;
        snprintf(path, sizeof path, "%s/volumes/%u_%s.nii", dir, i, names[k]);
        rc = write_volume(path, random_key(key, names[k]), k ? TIMES : 1, &bright, e);
        text_printf(&list, "%s", n++ ? ", " : "");
        text_printf(&list, map ? "\"%s\": " : "{\"modality\": \"%s\", \"path\": ", names[k]);
        text_printf(&list, "\"volumes/%u_%s.nii\"%s", i, names[k], map ? "" : "}");
    }
    text_printf(out, "%s{\"id\": \"%u\", ", i ? ",\n" : "[", i);
    if (n) text_printf(out, map ? "\"modality_paths\": {%s}, " : "\"images\": [%s], ", list.at);
    text_printf(out, "\"conversations\": [{\"from\": \"human\", \"value\": \"");
    for (uint32_t k = 0; k < n; k++) text_printf(out, "<image>\\n");
    text_printf(out, "how many?\"}, {\"from\": \"gpt\", \"value\": \"%u\"}]}", bright);
    text_free(&list);
    return rc;
}

/* Writes files that are no volumes. */
static int write_others(const char *dir, struct error *e)
{
    char path[4096], file[HEAD + SIDE * SIDE * SIDE * sizeof(float)] = {0};
    const float none = NAN;
    put_header(file, 2, 1, UINT8, 8);
    snprintf(path, sizeof path, "%s/flat.nii", dir);
    TRY(file_write_atomic(path, file, HEAD + SIDE * SIDE, e));
    put_header(file, 3, 1, FLOAT32, 32);
    memcpy(file + HEAD + 100 * sizeof none, &none, sizeof none);
    snprintf(path, sizeof path, "%s/holes.nii", dir);
    return file_write_atomic(path, file, sizeof file, e);
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct text json = {0};
    char path[4096];
    if (argc < 4) return 2;
    const uint32_t samples = (uint32_t)atoi(argv[2]);
    const uint64_t key = random_key((uint64_t)atoll(argv[3]), "volumes");
    snprintf(path, sizeof path, "%s/volumes", argv[1]);
    int rc = dir_make(path, &e);
    for (uint32_t i = 0; i < samples && !rc; i++) rc = write_sample(argv[1], i, random_bits(key, i), &json, &e);
    text_printf(&json, "]\n");
    snprintf(path, sizeof path, "%s/chats.json", argv[1]);
    if (!rc) rc = file_write_atomic(path, json.at, json.n, &e);
    if (!rc) rc = write_others(argv[1], &e);
    if (rc) fprintf(stderr, "%s\n", e.text);
    text_free(&json);
    return rc;
}
