// The handler calls nothing that POSIX doesn't allow in one: open, read, write, _exit.
#include "lost_pages.h"

#if defined(__unix__) || defined(__APPLE__)

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace culet {
namespace {

int exit_code_of_lost_pages = 1;

void say(const char* text, std::size_t size) {
    while (size > 0) {
        const ssize_t written = write(STDERR_FILENO, text, size);
        if (written <= 0) return;
        text += written;
        size -= static_cast<std::size_t>(written);
    }
}

void say(const char* text) { say(text, std::strlen(text)); }

// The number in hexadecimal digits at `at`, which is moved behind them.
std::uintptr_t hexadecimal(const char*& at, const char* end) {
    std::uintptr_t value = 0;
    for (; at < end; ++at) {
        const char c = *at;
        if (c >= '0' && c <= '9') {
            value = value * 16 + static_cast<std::uintptr_t>(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            value = value * 16 + static_cast<std::uintptr_t>(c - 'a' + 10);
        } else {
            break;
        }
    }
    return value;
}

// Whether a line of /proc/self/maps, "begin-end rights offset device inode path", is about
// `address`.
bool is_about(const char* at, const char* end, std::uintptr_t address) {
    const std::uintptr_t first = hexadecimal(at, end);
    if (at == end || *at != '-') return false;
    ++at;
    return first <= address && address < hexadecimal(at, end);
}

// Writes the path of the file that is mapped at `address`; false where it isn't known.
bool say_path(std::uintptr_t address) {
    const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (maps < 0) return false;
    static char line[8192];  // one thread gets here first and ends the process
    std::size_t size = 0;
    bool is_found = false;
    char c = 0;
    while (!is_found && read(maps, &c, 1) == 1) {
        if (c != '\n') {
            if (size < sizeof line) line[size++] = c;
            continue;
        }
        const auto* path = static_cast<const char*>(std::memchr(line, '/', size));
        if (path != nullptr && is_about(line, line + size, address)) {
            say(path, static_cast<std::size_t>(line + size - path));
            is_found = true;
        }
        size = 0;
    }
    close(maps);
    return is_found;
}

void end_with_a_word(int signal_number, siginfo_t* info, void*) {
    if (info->si_code <= 0) {  // sent by a program, no fault of memory
        signal(signal_number, SIG_DFL);
        raise(signal_number);
        return;
    }
    say("culet: ");
    if (!say_path(reinterpret_cast<std::uintptr_t>(info->si_addr))) say("a mapped file");
    say(": a part that was there when the file was opened can't be read any more (cut or "
        "overwritten "
        "while in use, or its disk fails)\n");
    _exit(exit_code_of_lost_pages);
}

}  // namespace

void explain_lost_pages(int exit_code) {
    struct sigaction now = {};
    if (sigaction(SIGBUS, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
        now.sa_handler != SIG_DFL) {
        return;
    }
    exit_code_of_lost_pages = exit_code;
    struct sigaction ours = {};
    ours.sa_sigaction = end_with_a_word;
    ours.sa_flags = SA_SIGINFO;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace culet

#else

namespace culet {

void explain_lost_pages(int) {}

}  // namespace culet

#endif
