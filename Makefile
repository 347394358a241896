# Plimsoll. `make` leaves build/plimsoll; `make demo` and `make test` do everything
# on a fresh machine; `make asan` runs the tests under the sanitizers.

CC      ?= gcc
BUILD   ?= build
CSTD    := -std=c11 -D_GNU_SOURCE
WARN    := -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-missing-field-initializers -Wno-format-zero-length
OPT     ?= -O3 -g -fno-math-errno -fno-trapping-math
CFLAGS  += $(CSTD) $(WARN) $(OPT) -fopenmp -Isrc -MMD -MP $(EXTRA)
LDLIBS  += -lcjson -lyaml -lm -lpthread
LDFLAGS += -fopenmp $(EXTRA)

DIRS := base io graph run cpu cuda passes plan models data train report cli
SRCS := $(filter-out src/cli/main.c,$(foreach d,$(DIRS),$(wildcard src/$(d)/*.c)))

# CUDA: on where nvcc is found, `make CUDA=0` forces it off. Without it none.c stands
# for the device; the planning half, plan.c, is in every build.
NVCC      ?= $(shell command -v nvcc)
CUDA      ?= $(if $(NVCC),1,0)
CUDA_ARCH ?= sm_90
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
ifeq ($(CUDA),1)
  ifneq ($(words $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h $(CUDA_HOME)/include/cublasLt.h)),2)
    $(error nvcc is $(NVCC), but cuda_runtime_api.h or cublasLt.h is not in $(CUDA_HOME)/include: set CUDA_HOME, or build with make CUDA=0)
  endif
  SRCS      := $(filter-out src/cuda/none.c,$(SRCS))
  CUS       := $(wildcard src/cuda/*.cu)
  CUDA_LIBS := $(foreach d,$(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib),-L$(d) -Wl,-rpath,$(d)) -lcublasLt -lcudart -lstdc++
  NVFLAGS   := -arch=$(CUDA_ARCH) -O3 -std=c++17 -lineinfo -Isrc -MMD -MP -Werror all-warnings -Xcompiler -Wall,-Wextra
  LDLIBS    += $(CUDA_LIBS)
else
  SRCS := $(filter-out src/cuda/%,$(SRCS)) src/cuda/plan.c src/cuda/none.c
endif
OBJS := $(SRCS:src/%.c=$(BUILD)/%.o) $(CUS:src/%.cu=$(BUILD)/%.cu.o)
LIB  := $(BUILD)/libplimsoll.a

all: $(BUILD)/plimsoll

$(BUILD)/plimsoll: $(BUILD)/cli/main.o $(LIB)
	$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@
$(LIB): $(OBJS)
	rm -f $@ && ar rcs $@ $(OBJS)
$(BUILD)/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c $< -o $@
$(BUILD)/cuda/%.o: CFLAGS += -isystem $(CUDA_HOME)/include
$(BUILD)/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) -c $< -o $@

TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
$(BUILD)/tests/%: tests/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Itests $< $(LIB) $(LDFLAGS) $(LDLIBS) -lcmocka -o $@
tests: $(TESTS)

# The CUDA device against the reference kernels: needs none of the libraries that
# files and configurations need, so that it builds on a bare machine with a card.
SEAM := $(filter $(foreach d,base graph run cpu cuda passes plan,$(BUILD)/$(d)/%),$(OBJS))
$(BUILD)/libseam.a: $(SEAM)
	rm -f $@ && ar rcs $@ $(SEAM)
$(BUILD)/tests/cuda_seam: tests/cuda_seam.c $(BUILD)/libseam.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $^ $(LDFLAGS) -lm -lpthread $(CUDA_LIBS) -o $@

clean:
	rm -rf $(BUILD)
.PHONY: all tests clean

-include $(OBJS:.o=.d)
