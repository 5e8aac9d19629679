// Any CPU: plain C++.
#define CULET_LEVEL level_portable
#include "../level.inc"
