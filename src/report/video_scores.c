/*
 * video_scores.c: the scores of a model on videos (infer/validate.h), as a table, CSV and JSON.
 *
 *     video      object  frames       J       F     J&F
 *     bear            1      80  0.9512  0.9731  0.9622
 *     all                    80  0.9512  0.9731  0.9622      the mean over the objects
 *
 * Volumes have the scores of their structures in three dimensions instead.
 */
#include "io/table.h"
#include "report/requests.h"

static const struct report_column OBJECTS[] = {{"video", "video"}, {"object", "object", ""}, {"frames", "frames", ""},
                                               {"j", "J", "%.4f"}, {"f", "F", "%.4f"}, {"j_and_f", "J&F", "%.4f"}};

static int check_options(const struct evaluation *o, struct error *e)
{
    const char *other = o->overlays                ? "--overlays"
                        : o->own_size              ? "--own-size"
                        : o->worst != UINT64_MAX   ? "--worst"
                                                   : NULL;
    if (other) return error_set(e, PL_USAGE, "%s is for images, and data.frames asks for videos", other);
    if (o->prompt && strcmp(o->prompt, "mask") && strcmp(o->prompt, "box"))
        return error_set(e, PL_USAGE, "--prompt %s: expected mask or box", o->prompt);
    return PL_OK;
}

static int write_csv(const struct video_validation *v, const char *path, struct error *e)
{
    struct text out = {0};
    if (v->volumes.table.rows.n) {
        mask_table_csv(&v->volumes.table, volume_scores_name, v->set, &out);
        return file_write_text(PL_OK, path, &out, e);
    }
    text_printf(&out, "video,object,frames,j,f,j_and_f\n");
    for (uint32_t i = 0; i < v->objects.n; i++) {
        const struct video_object *x = &v->objects.at[i];
        csv_put_field(&out, x->video);
        text_printf(&out, "%u,%u,%.9g,%.9g,%.9g\n", x->id, x->frames, x->j, x->f, (x->j + x->f) / 2);
    }
    return file_write_text(PL_OK, path, &out, e);
}

static void print_scores(const struct video_validation *v, const struct evaluation *o)
{
    struct report_table t = REPORT_TABLE(OBJECTS);
    struct text out = {0};
    double j = 0, f = 0;
    uint64_t frames = 0;
    char time[32], arena[32];
    for (uint32_t i = 0; i < v->objects.n; i++) {
        const struct video_object *x = &v->objects.at[i];
        TABLE_ADD(&t, CELL(x->video), CELL(x->id), CELL(x->frames), CELL(x->j), CELL(x->f), CELL((x->j + x->f) / 2));
        j += x->j / v->objects.n, f += x->f / v->objects.n, frames += x->frames;
    }
    if (o->json) {
        PRINT_FACTS(2, FACT("model", o->model), FACT("prompt", o->prompt ? o->prompt : "mask"),
                    FACT("videos", v->videos), FACT("unscored_videos", v->unscored), FACT("later_objects", v->later),
                    FACT("j", j), FACT("f", f), FACT("j_and_f", (j + f) / 2), FACT("seconds", v->seconds),
                    FACT("arena_bytes", v->arena), FACT_TABLE("objects", &t));
    } else {
        TABLE_ADD(&t, CELL("all"), CELL_IF(false, 0), CELL(frames), CELL(j), CELL(f), CELL((j + f) / 2));
        table_print(&t, 0, 0, &out);
        text_printf(&out, "\n%llu frames of %llu videos in %s, arena %s\n", (unsigned long long)v->frames,
                    (unsigned long long)v->videos, duration_print(v->seconds, time), size_print(v->arena, arena));
        if (v->unscored)
            text_printf(&out, "%llu videos are not scored: they have less than three frames, or no object on the "
                        "first\n", (unsigned long long)v->unscored);
        if (v->later)
            text_printf(&out, "%llu objects appear after the first frame, and are not scored\n",
                        (unsigned long long)v->later);
        fputs(out.at, stdout);
    }
    text_free(&out);
    table_free(&t);
}

static void put_volumes(struct json_writer *w, const void *of)
{
    const struct video_validation *v = of;
    mask_table_json(&v->volumes.table, &(struct table_members){"structures", "volumes", "volume"}, volume_scores_name,
                    v->set, w);
}

/* Prints the scores of volumes. */
static void print_volumes(const struct video_validation *v, const struct evaluation *o)
{
    struct text out = {0};
    char time[32], arena[32];
    if (o->json) {
        PRINT_FACTS(2, FACT("model", o->model), FACT("prompt", o->prompt ? o->prompt : "mask"),
                    FACT("unscored_volumes", v->unscored), FACT("tolerance", v->volumes.table.tolerance),
                    FACT("seconds", v->seconds), FACT("arena_bytes", v->arena), FACT_CALL_IF(true, put_volumes, v));
    } else {
        volume_scores_print(&v->volumes, &out);
        text_printf(&out, "\n%llu slices of %llu volumes in %s, arena %s\n", (unsigned long long)v->frames,
                    (unsigned long long)v->videos, duration_print(v->seconds, time), size_print(v->arena, arena));
        if (v->unscored)
            text_printf(&out, "%llu volumes have no label, and are not scored\n", (unsigned long long)v->unscored);
    }
    if (!o->json) fputs(out.at, stdout);
    text_free(&out);
}

int evaluate_videos(struct config *c, const struct evaluation *o, struct error *e)
{
    struct video_validation v;
    TRY(check_options(o, e));
    int rc = validate_videos(&v, c, o->prompt && !strcmp(o->prompt, "box"), o->own.tolerance, e);
    if (!rc && o->csv) rc = write_csv(&v, o->csv, e);
    if (!rc) (v.volumes.table.rows.n ? print_volumes : print_scores)(&v, o);
    validate_videos_close(&v);
    return rc;
}
