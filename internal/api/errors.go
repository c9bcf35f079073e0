package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/idempotency"
)

// statusOf is the one mapping from codes to statuses.
var statusOf = map[fleet.Code]int{
	fleet.CodeInvalidArgument:  http.StatusBadRequest,
	fleet.CodeUnauthorized:     http.StatusUnauthorized,
	fleet.CodeForbidden:        http.StatusForbidden,
	fleet.CodeNotFound:         http.StatusNotFound,
	fleet.CodeRouteNotFound:    http.StatusNotFound,
	fleet.CodeMethodNotAllowed: http.StatusMethodNotAllowed,
	fleet.CodeConflict:         http.StatusConflict,
	fleet.CodePayloadTooLarge:  http.StatusRequestEntityTooLarge,
	fleet.CodeLocked:           http.StatusLocked,
	fleet.CodeQuotaExceeded:    http.StatusTooManyRequests,
	fleet.CodeInternal:         http.StatusInternalServerError,
	fleet.CodeUnimplemented:    http.StatusNotImplemented,
	fleet.CodeUnavailable:      http.StatusServiceUnavailable,
	fleet.CodeDeadlineExceeded: http.StatusGatewayTimeout,
}

// statusClientGone is what the metrics count for a caller that left before the
// answer; nobody receives it.
const statusClientGone = 499

const defaultRetryAfter = "5"

// httpStatus refines the mapping where the wire tells apart what the code does
// not.
func httpStatus(err error) int {
	code := fleet.CodeOf(err)
	var probe *hosts.ProbeError
	var fe *fleet.Error
	switch {
	case errors.As(err, &probe):
		return http.StatusBadGateway
	case errors.As(err, &fe) && fe.Details[fleet.DetailReason] == idempotency.ReasonReused:
		return http.StatusUnprocessableEntity
	}
	if status, ok := statusOf[code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// writeError answers with the envelope. What a cause says is for the log only.
func (s *Server) writeError(w *web.Writer, r *web.Request, err error) {
	if w.Status != 0 {
		s.log.Error("error after the answer had begun", slog.String("request_id", r.ID), slog.Any("error", err))
		return
	}
	if clientGone(r.Context(), err) {
		w.Status = statusClientGone
		return
	}
	if fleet.CodeOf(err) == fleet.CodeInternal && errors.Is(err, context.DeadlineExceeded) {
		err = fleet.Wrap(fleet.CodeDeadlineExceeded, err, "this took too long and was given up")
	}
	status := httpStatus(err)
	level := slog.LevelDebug
	if status >= http.StatusInternalServerError && status != http.StatusNotImplemented && status != http.StatusServiceUnavailable {
		level = slog.LevelError
	}
	s.log.Log(r.Context(), level, "request failed", slog.Int("status", status), slog.String("method", r.Method),
		slog.String("path", r.URL.Path), slog.String("request_id", r.ID), slog.Any("error", err))

	info := gen.ErrorInfo{Code: string(fleet.CodeInternal), Message: "internal error; the server's log has it under request id " + r.ID}
	var fe *fleet.Error
	if errors.As(err, &fe) { // its message is made for callers
		info = gen.ErrorInfo{Code: string(fe.Code), Message: fe.Message, Details: fe.Details}
	}
	h := w.Header()
	switch status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="fuse"`)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		after := info.Details[web.DetailRetryAfter]
		if _, err := strconv.ParseUint(after, 10, 31); err != nil {
			after = defaultRetryAfter
		}
		h.Set("Retry-After", after)
	}
	web.WriteJSON(w, status, gen.ErrorBody{Error: info})
}
