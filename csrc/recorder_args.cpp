// Checks of the arguments of recorded ops.
#include "recorder.h"

namespace culet {
namespace {

[[noreturn]] void refuse_type(const char* name, const char* wanted) {
    throw nb::type_error((std::string(name) + " must be " + wanted).c_str());
}

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Ints ints(nb::handle array, const char* name) {
    Ints found;
    if (!nb::try_cast<Ints>(array, found, false)) {
        refuse_type(name, "a contiguous int32 vector");
    }
    return found;
}

std::string text(int64_t number) { return std::to_string(number); }

// A sequence's rows must be together, at ascending positions whose pages are in the table.
void check_rows(CheckedPages& pages, int64_t num_seqs, int64_t num_pages) {
    PageTableView& t = pages.view;
    std::vector<bool> seen(num_seqs, false);
    for (int64_t s = 0; s < num_seqs; s++) {
        if (t.first_page[s] < 0 || t.seq_pages[s] < 0 || t.seq_pages[s] > t.seq_pages[s + 1]) {
            refuse("sequence " + text(s) + " of the page table has no valid range of pages");
        }
    }
    if (num_seqs > 0 && t.seq_pages[num_seqs] > num_pages) {
        refuse("the page table has " + text(num_pages) + " pages, but its ranges end at " +
               text(t.seq_pages[num_seqs]));
    }
    for (int64_t row = 0; row < t.num_rows; row++) {
        const int32_t seq = t.row_seq[row], position = t.positions[row];
        if (seq < 0 || seq >= num_seqs) {
            refuse("row " + text(row) + " belongs to sequence " + text(seq) + " of " +
                   text(num_seqs));
        }
        if (row > 0 && t.row_seq[row - 1] == seq) {
            if (t.positions[row - 1] >= position) refuse("positions of a sequence must ascend");
        } else {
            if (seen[seq]) refuse("the rows of sequence " + text(seq) + " are not together");
            seen[seq] = true;
        }
        const int64_t entry = position / t.page_tokens - t.first_page[seq];
        if (position < 0 || entry < 0 || entry >= t.seq_pages[seq + 1] - t.seq_pages[seq]) {
            refuse("position " + text(position) + " of row " + text(row) + " has no page");
        }
        pages.first_token.push_back(int64_t{t.first_page[seq]} * t.page_tokens);
    }
}

}  // namespace

Matrix Recorder::matrix(nb::handle array, const char* name, bool writable) {
    using ReadOnly = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
    using Writable = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
    Matrix result;
    const auto fill = [&](const auto& found) {
        result.data = const_cast<float*>(found.data());
        result.rows = static_cast<int64_t>(found.shape(0));
        result.cols = static_cast<int64_t>(found.shape(1));
        result.stride = found.stride(0);
        if (result.cols > 1 && found.stride(1) != 1) {
            refuse(std::string(name) + " must have contiguous rows");
        }
    };
    if (writable) {
        Writable found;
        if (!nb::try_cast<Writable>(array, found, false)) {
            refuse_type(name, "a writable float32 matrix");
        }
        fill(found);
    } else {
        ReadOnly found;
        if (!nb::try_cast<ReadOnly>(array, found, false)) refuse_type(name, "a float32 matrix");
        fill(found);
    }
    if (result.rows == 0 || result.cols == 0) refuse(std::string(name) + " is empty");
    keep(array);
    return result;
}

Matrix Recorder::layered_matrix(nb::handle array, const char* name, int64_t* width) {
    using Layered = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
    Layered found;
    if (!nb::try_cast<Layered>(array, found, false)) {
        refuse_type(name, "a writable contiguous float32 array of rows, layers and values");
    }
    *width = static_cast<int64_t>(found.shape(2));
    const int64_t cols = static_cast<int64_t>(found.shape(1)) * *width;
    if (found.shape(0) == 0 || cols == 0) refuse(std::string(name) + " is empty");
    keep(array);
    return {found.data(), static_cast<int64_t>(found.shape(0)), cols, cols};
}

Matrix Recorder::optional_matrix(nb::handle array, const char* name) {
    return array.is_none() ? Matrix{} : matrix(array, name, true);
}

const float* Recorder::vector(nb::handle array, const char* name, int64_t size) {
    using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    Vector found;
    if (!nb::try_cast<Vector>(array, found, false)) {
        refuse_type(name, "a contiguous float32 vector");
    }
    if (static_cast<int64_t>(found.shape(0)) != size) {
        refuse(std::string(name) + " has " + text(found.shape(0)) + " values instead of " +
               text(size));
    }
    keep(array);
    return found.data();
}

const float* Recorder::optional_vector(nb::handle array, const char* name, int64_t size) {
    return array.is_none() ? nullptr : vector(array, name, size);
}

const int32_t* Recorder::indices(nb::handle array, const char* name, int64_t size, int64_t limit) {
    const Ints found = ints(array, name);
    if (static_cast<int64_t>(found.shape(0)) != size) {
        refuse(std::string(name) + " has " + text(found.shape(0)) + " values instead of " +
               text(size));
    }
    for (int64_t i = 0; i < size; i++) {
        if (found.data()[i] < 0 || found.data()[i] >= limit) {
            refuse(std::string(name) + " holds " + text(found.data()[i]) + ", outside of 0 to " +
                   text(limit - 1));
        }
    }
    keep(array);
    return found.data();
}

const CheckedPages& Recorder::checked_pages(nb::handle pages, int64_t num_rows) {
    std::unique_ptr<CheckedPages>& known = pages_[pages.ptr()];
    if (!known) {
        auto read = std::make_unique<CheckedPages>();
        const auto column = [&](const char* name) {
            const nb::object array = nb::getattr(pages, name);
            keep(array);
            return ints(array, name);
        };
        const Ints row_seq = column("row_seq"), positions = column("positions");
        const Ints seq_pages = column("seq_pages"), first_page = column("first_page");
        const Ints list = column("pages");
        const int page_tokens = nb::cast<int>(nb::getattr(pages, "page_tokens"));
        const int64_t num_seqs = static_cast<int64_t>(first_page.shape(0));
        if (page_tokens < 1) refuse("page_tokens is " + text(page_tokens));
        if (row_seq.shape(0) != positions.shape(0) ||
            static_cast<int64_t>(seq_pages.shape(0)) != num_seqs + 1) {
            refuse("the columns of the page table have unequal lengths");
        }
        read->view = {page_tokens,      static_cast<int64_t>(row_seq.shape(0)),
                      row_seq.data(),   positions.data(),
                      seq_pages.data(), first_page.data(),
                      list.data()};
        check_rows(*read, num_seqs, static_cast<int64_t>(list.shape(0)));
        read->largest_page = -1;
        for (size_t i = 0; i < list.shape(0); i++) {
            if (list.data()[i] < 0) refuse("the page table holds page " + text(list.data()[i]));
            read->largest_page = std::max(read->largest_page, list.data()[i]);
        }
        keep(pages);
        known = std::move(read);
    }
    if (known->view.num_rows != num_rows) {
        refuse("the page table has " + text(known->view.num_rows) + " rows instead of " +
               text(num_rows));
    }
    return *known;
}

void Recorder::check_pages_of(const CheckedPages& pages, const KvStore& kv) const {
    if (pages.view.page_tokens != kv.page_tokens || pages.largest_page >= kv.num_pages) {
        refuse("the page table does not fit storage of " + text(kv.num_pages) + " pages of " +
               text(kv.page_tokens) + " tokens");
    }
}

std::shared_ptr<const Experts> Recorder::experts_of(nb::handle object, int64_t hidden) {
    KnownExperts& known = experts_[object.ptr()];
    if (known.experts) return known.experts;
    auto experts = std::make_shared<Experts>();
    const auto fail = [&](const char* what) {
        experts_.erase(object.ptr());
        refuse(std::string("experts: ") + what);
    };
    experts->router = &nb::cast<const Weight&>(nb::getattr(object, "router")).planes;
    experts->num_used = nb::cast<int>(nb::getattr(object, "num_used"));
    for (nb::handle item : nb::getattr(object, "gate_up")) {
        if (nb::isinstance<nb::tuple>(item)) {
            experts->gate.push_back(&nb::cast<const Weight&>(item[0]).planes);
            experts->up.push_back(&nb::cast<const Weight&>(item[1]).planes);
        } else {
            experts->gate.push_back(&nb::cast<const Weight&>(item).planes);
            experts->up.push_back(nullptr);
        }
    }
    for (nb::handle item : nb::getattr(object, "down")) {
        experts->down.push_back(&nb::cast<const Weight&>(item).planes);
    }
    const int64_t count = static_cast<int64_t>(experts->down.size());
    if (experts->gate.size() != experts->down.size() || experts->router->num_rows != count) {
        fail("router, gate_up and down differ in number");
    }
    if (experts->router->num_cols != hidden) fail("the router does not fit x");
    if (experts->num_used < 1 || experts->num_used > count) fail("num_used is out of range");
    for (int64_t i = 0; i < count; i++) {
        const int64_t ffn = experts->down[i]->num_cols;
        const int64_t gate_rows = experts->up[i] ? ffn : 2 * ffn;
        if (experts->gate[i]->num_cols != hidden || experts->gate[i]->num_rows != gate_rows ||
            experts->down[i]->num_rows != hidden ||
            (experts->up[i] &&
             (experts->up[i]->num_cols != hidden || experts->up[i]->num_rows != ffn))) {
            fail("shapes of an expert's weights do not fit");
        }
    }
    const nb::object router_scale = nb::getattr(object, "router_scale");
    const nb::object expert_scale = nb::getattr(object, "expert_scale");
    experts->router_scale = vector(router_scale, "router_scale", hidden);
    experts->expert_scale = vector(expert_scale, "expert_scale", count);
    // Frozen, and as long-lived as the model: its parts stay alive with it.
    known.object = nb::borrow(object);
    known.experts = std::move(experts);
    return known.experts;
}

}  // namespace culet
