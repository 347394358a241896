/*
 * report.c: `plimsoll report DIR`: writes an HTML report of a run.
 */
#include "cli/cli.h"
#include "report/html.h"

static int report(struct options *o, struct error *e)
{
    if (o->paths.n != 1)
        return error_set(e, PL_USAGE, "expected the folder of a run: plimsoll %s", command_report.usage);
    TRY(report_html(o->paths.at[0], e));
    printf("%s/report.html\n", o->paths.at[0]);
    return PL_OK;
}

const struct command command_report = {
    "report",
    "report DIR",
    "Writes DIR/report.html, one self-contained page: the curves of DIR/metrics.jsonl, the memory of the\n"
    "plan, DIR/images/*.png, DIR/worst/*.png and the configuration. `train` also writes it at the end of\n"
    "a run.",
    .shared = OPT_PATHS, .run = report};
