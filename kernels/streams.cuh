// Outcomes that a decoder reports for its streams -> statuses of the rows of the streams.
//
//   streams   decoder_status, actual_nbytes, capacity      one entry for each stream
//     | fold_stream     DECODER: failed; SHORT: wrote another number of bytes
//     v
//   rows      status                                       one or more streams each
#pragma once
#include "common.cuh"

// Tables of a decoder, with one entry for each stream.
struct Outcomes {
    const int32_t* decoder_status;
    const uint64_t* actual_nbytes;
    const uint64_t* stream_capacity;  // size that each stream has to decode to
};

GS_DEVICE bool is_decoded(const Outcomes& outcomes, uint32_t stream) {
    return outcomes.decoder_status[stream] == 0 &&
           outcomes.actual_nbytes[stream] == outcomes.stream_capacity[stream];
}

// Marks the row of a stream that was not decoded. A row with an earlier status keeps it.
// If several streams of a row go wrong, DECODER wins over SHORT in any order.
GS_DEVICE void fold_stream(
    const Outcomes& outcomes, uint32_t stream, Status* status, uint32_t row) {
    if (outcomes.decoder_status[stream] != 0) {
        if (atomicCAS(status + row, STATUS_OK, STATUS_DECODER) == STATUS_SHORT) {
            atomicExch(status + row, STATUS_DECODER);
        }
    } else if (!is_decoded(outcomes, stream)) {
        fail_row(status, row, STATUS_SHORT);
    }
}
