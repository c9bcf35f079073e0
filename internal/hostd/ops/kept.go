package ops

import (
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// KeptError is an error as it is kept: what callers saw the first time.
type KeptError struct {
	Code     string            `json:"code"`
	Message  string            `json:"message"`
	Details  map[string]string `json:"details,omitempty"`
	Sentinel string            `json:"sentinel,omitempty"`
}

// KeepError makes an error one that can be kept; nil stays nil.
func KeepError(err error) *KeptError {
	if err == nil {
		return nil
	}
	i := hostwire.Info(err)
	return &KeptError{i.GetCode(), i.GetMessage(), i.GetDetails(), i.GetSentinel()}
}

// Err is the error that was kept.
func (e *KeptError) Err() error {
	if e == nil {
		return nil
	}
	return hostwire.FromInfo(&hostwirev1.ErrorInfo{Code: e.Code, Message: e.Message, Details: e.Details, Sentinel: e.Sentinel})
}
