/*
 * video_text.c: see video_text.h.
 */
#include "text/template/video_text.h"

static void below_hundred(uint32_t n, struct text *out)
{
    static const char *const small[] = {"zero",    "one",     "two",       "three",    "four",
                                        "five",    "six",     "seven",     "eight",    "nine",
                                        "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                        "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
    static const char *const tens[] = {"",      "",      "twenty",  "thirty", "forty",
                                       "fifty", "sixty", "seventy", "eighty", "ninety"};
    if (n < COUNT(small)) text_printf(out, "%s", small[n]);
    else text_printf(out, "%s%s%s", tens[n / 10], n % 10 ? "-" : "", n % 10 ? small[n % 10] : "");
}

/* The largest unit, then the rest: after "and" below a hundred, else after a comma. */
void number_words(uint32_t n, struct text *out)
{
    static const struct {
        uint32_t of;
        const char *name;
    } units[] = {{1000000000, "billion"}, {1000000, "million"}, {1000, "thousand"}, {100, "hundred"}};
    for (size_t i = 0; i < COUNT(units); i++) {
        if (n < units[i].of) continue;
        const uint32_t rest = n % units[i].of;
        number_words(n / units[i].of, out);
        text_printf(out, " %s%s", units[i].name, !rest ? "" : rest < 100 ? " and " : ", ");
        if (rest) number_words(rest, out);
        return;
    }
    below_hundred(n, out);
}

/* As Python writes a timedelta: hours without leading zeros, days before them. */
static void put_duration(uint32_t seconds, struct text *out)
{
    const uint32_t days = seconds / 86400, rest = seconds % 86400;
    if (days) text_printf(out, "%u day%s, ", days, days == 1 ? "" : "s");
    text_printf(out, "%u:%02u:%02u", rest / 3600, rest / 60 % 60, rest % 60);
}

void video_text(const struct video_words *v, struct text *out)
{
    text_printf(out, "You are provided the following series of ");
    number_words(v->frames, out);
    text_printf(out, " frames from a ");
    put_duration(v->duration, out);
    text_printf(out, " [H:MM:SS] video.\n");
    for (uint32_t i = 0; i < v->frames; i++)
        text_printf(out, "\nFrame from %02u:%02u:%s%s%s", v->seconds[i] / 60, v->seconds[i] % 60, v->before, v->image,
                    v->after);
    text_printf(out, "\n\n");
}
