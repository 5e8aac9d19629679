#include "program.h"

namespace culet {

void Program::run() {
    using Clock = std::chrono::steady_clock;
    struct Session {
        Program& program;
        explicit Session(Program& p) : program(p) { program.pool_.begin(); }
        ~Session() {
            program.pool_.end();
            program.commands_.clear();
        }
    } session(*this);
    Context context{pool_, kernels_, exact_, arena_};
    for (const Entry& entry : commands_) {
        arena_.reset();
        if (!profile_) {
            entry.command(context);
            continue;
        }
        const Clock::time_point begin = Clock::now();
        entry.command(context);
        OpTime& time = times_[entry.op];
        time.num_calls++;
        time.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    }
}

}  // namespace culet
