/*
 * report.c: `plimsoll report DIR`: a run's folder as one page to look at.
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
    if (argc != 1 || argv[0][0] == '-') return error_set(e, PL_USAGE, "takes the folder of a run: plimsoll %s", command_report.usage);
    int rc = report_html(argv[0], e);
    if (!rc) printf("%s/report.html\n", argv[0]);
    return rc;
}

const struct command command_report = {
    "report", "report DIR",
    "Writes DIR/report.html: curves of DIR/metrics.jsonl, the plan's memory, DIR/images/*.png, DIR/worst/*.png and the configuration, on one page\n"
    "that needs no other file. `train` writes it too, when a run ends.", run};
