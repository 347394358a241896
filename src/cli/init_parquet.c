/*
 * init_parquet.c: detects Parquet tables for `plimsoll init` (init.h), as a dataset of Hugging Face
 * is downloaded:
 *
 *     DIR/train-00000-of-00002.parquet       DIR/data/train-00000-of-00002.parquet       DIR/default/train/0000.parquet
 *
 * Files with val in their names or folders are for validation, or if there are none those with
 * test.
 */
#include <string.h>

#include "cli/init.h"
#include "io/parquet.h"

static bool names_part(const char *path, const char *part) { return strcasestr(path, part) != NULL; }

/* Shares the files out. Names count from the dataset's folder on. */
static void share_out(const struct names *files, size_t folder, struct detected *f)
{
    uint32_t val = 0, test = 0;
    for (uint32_t i = 0; i < files->n; i++) {
        const bool v = names_part(files->at[i] + folder, "val");
        val += v;
        test += !v && names_part(files->at[i] + folder, "test");
    }
    const bool one_part = val == files->n || test == files->n; /* it is trained on */
    for (uint32_t i = 0; i < files->n; i++) {
        const char *name = files->at[i] + folder;
        const bool v = names_part(name, "val"), t = !v && names_part(name, "test");
        if (t && val && !one_part)
            log_warn("%s is not used: the files with val in their names are evaluated on", files->at[i]);
        else vec_push(!one_part && (v || t) ? &f->validation : &f->train, mem_string(files->at[i]));
    }
}

void detect_parquet_file(const char *path, struct detected *f)
{
    const char *text = detect_conversations(path);
    f->format = text ? "conversations" : "parquet";
    f->what = text ? text : "a Parquet table of images and masks"; /* opening it names the columns that are missing */
}

bool detect_parquet(const char *folder, struct detected *f)
{
    struct text pattern = {0};
    struct names files = {0};
    struct error ignored;
    text_printf(&pattern, "%s/{,*/,*/*/}*.parquet", folder);
    if (!file_glob(pattern.at, &files, &ignored) && files.n) {
        share_out(&files, strlen(folder), f);
        detect_parquet_file(f->train.at[0], f);
    }
    text_free(&pattern);
    names_free(&files);
    return f->train.n;
}
