#include "d9d/base/check.h"
