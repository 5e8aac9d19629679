// What happens when a mapped file is cut while it is in use. No Python here.
#pragma once

namespace culet {

// From now on, reading a page that a mapped file no longer has ends the process with one line on
// standard error, which names the file where the system tells it, and with `exit_code`. Without
// this the system ends the process without a word. Does nothing where there are no such signals, or
// where the program has a handler of its own.
void explain_lost_pages(int exit_code);

}  // namespace culet
