/*
 * fuzz_report.c: any bytes as one of the files that a report is made of: the first byte chooses
 * which. The others are sound.
 */
#include <sys/stat.h>

#include "report/html.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct {
    const char *name, *text;
} files[] = {
    {"metrics.jsonl",
     "{\"step\":1,\"loss\":2.5,\"learning_rate\":0.1,\"grad_norm\":1,\"seconds\":0.5,\"tokens_per_second\":10.0,"
     "\"samples\":8,\"arena_bytes\":64}\n{\"step\":1,\"eval_loss\":2,\"eval_samples\":3}\n"},
    {"plan.json", "{\"arena_bytes\": 64, \"breakdown\": {\"weights\": 64}, \"settings\": {}}"},
    {"config.yaml", "model: {preset: llama-tiny}\n"},
    {"eval.txt", "step 1\n"},
    {"worst/index.json",
     "[{\"file\": \"01-box-0.100.png\", \"prompt\": \"box\", \"iou\": 0.1, \"sample\": \"a\", \"mask\": 3}]"},
    {"worst/01-box-0.100.png", "\x89PNG\r\n\x1a\n"},
    {"answers/step-1.jsonl", "{\"prompt\":\"a\",\"reference\":\"b\",\"answer\":\"c\",\"images\":[\"x.png\"]}\n"},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error e;
    char path[128];
    if (fuzz_begin()) {
        static const char *const folders[] = {"worst", "answers"};
        for (size_t i = 0; i < COUNT(folders); i++) {
            snprintf(path, sizeof path, "%s/%s", fuzz_dir, folders[i]);
            CHECK(!mkdir(path, 0777));
        }
        for (size_t i = 0; i < COUNT(files); i++) fuzz_put(files[i].name, files[i].text, strlen(files[i].text));
    }
    if (!size) return 0;
    const unsigned which = data[0] % COUNT(files);
    fuzz_put(files[which].name, data + 1, size - 1);
    if (report_html(fuzz_dir, &e)) CHECK(*e.text);
    fuzz_put(files[which].name, files[which].text, strlen(files[which].text));
    return 0;
}
