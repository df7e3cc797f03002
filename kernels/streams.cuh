// What a decoder says of each of its streams, folded into the rows that they are of.
//
//   streams   decoder_status, actual_nbytes, capacity      one a stream
//     | fold_stream     DECODER: failed; SHORT: wrote another number of bytes
//     v
//   rows      status                                       of one or several streams
#pragma once
#include "common.cuh"

// Tables of a decoder, with one entry a stream.
struct Outcomes {
    const int32_t* decoder_status;
    const uint64_t* actual_nbytes;
    const uint64_t* stream_capacity;  // what each has to decode to
};

GS_DEVICE bool is_decoded(const Outcomes& outcomes, uint32_t stream) {
    return outcomes.decoder_status[stream] == 0 &&
           outcomes.actual_nbytes[stream] == outcomes.stream_capacity[stream];
}

// Marks the row of a stream that is not decoded. Rows with an earlier status keep it; of
// one row's streams a failed one outweighs a short one, whatever their order.
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
