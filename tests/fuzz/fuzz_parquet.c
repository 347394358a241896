/*
 * fuzz_parquet.c: any bytes as a Parquet table. The first byte chooses the codec that all columns
 * claim; the end of the file is repaired, so that the footer is found. Rows of an accepted table
 * are JSON, and cells have the length that they claim.
 */
#include "files.h"
#include "io/json.h"
#include "io/parquet_rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 64, ROOM = 1 << 16 };

static bool all(const char *name) { return name != NULL; }

static void read_rows(const struct parquet *p)
{
    struct parquet_rows r;
    struct text row = {0};
    struct error e = {0};
    bool more = true;
    parquet_rows_open(&r, p, all, 1 << 20);
    for (int i = 0; i < ROWS && more; i++) {
        if (parquet_rows_next(&r, &row, &more, &e)) {
            CHECK(e.text[0]);
            break;
        }
        struct bump b = {0};
        struct value *v;
        /* a name twice, a zero byte */
        if (more && row.n < ROOM && json_parse(row.at, row.n, &b, &v, &e)) CHECK(e.code == PL_USAGE);
        bump_free(&b);
    }
    text_free(&row);
    parquet_rows_close(&r);
}

static void read_cells(struct parquet *p)
{
    static char room[ROOM];
    struct error e = {0};
    enum cell_state state;
    size_t n;
    for (uint32_t c = 0; c < p->n_columns && c < 8; c++) {
        uint64_t entries = 0;
        for (uint32_t g = 0; g < p->n_groups; g++) entries += p->groups[g].chunks[c].entries;
        if (p->nodes[p->columns[c]].type != PARQUET_BYTES || entries > 1 << 20 || parquet_index(p, c, &e)) continue;
        for (uint64_t row = 0; row < p->rows && row < ROWS; row++)
            for (uint32_t item = 0; item < 3; item++)
                if (!parquet_cell(p, (struct parquet_cell){c, row, item}, room, sizeof room, &n, &state, &e))
                    CHECK(state != CELL_THERE || n <= sizeof room);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct parquet p;
    struct error e = {0};
    fuzz_begin();
    if (size < 13) return 0;
    uint8_t *bytes = mem_copy(data + 1, size - 1);
    if (data[0] & 1) memcpy(bytes, "PAR1", 4), memcpy(bytes + size - 5, "PAR1", 4);
    const char *path = fuzz_put("table.parquet", bytes, size - 1);
    mem_free(bytes);
    if (parquet_open(&p, path, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0]);
        return 0;
    }
    for (uint32_t g = 0; g < p.n_groups && data[0] >> 1; g++)
        for (uint32_t c = 0; c < p.n_columns; c++) p.groups[g].chunks[c].codec = data[0] >> 1 & 7;
    read_rows(&p);
    read_cells(&p);
    parquet_close(&p);
    return 0;
}
