/*
 * report.c: `plimsoll report DIR`: writes an HTML report of a run.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "report/html.h"

static int run(int argc, char **argv, struct error *e)
{
    if (argc == 1 && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
        printf("usage: plimsoll %s\n\n%s\n", command_report.usage, command_report.summary);
        return PL_OK;
    }
    if (argc != 1 || argv[0][0] == '-')
        return error_set(e, PL_USAGE, "expected the folder of a run: plimsoll %s", command_report.usage);
    int rc = report_html(argv[0], e);
    if (!rc) printf("%s/report.html\n", argv[0]);
    return rc;
}

const struct command command_report =
    {"report", "report DIR",
     "Writes DIR/report.html, one self-contained page: the curves of DIR/metrics.jsonl, the memory of the plan, "
     "DIR/images/*.png,\n"
     "DIR/worst/*.png and the configuration. `train` also writes it at the end of a run.",
     run};
