package hostwire

import (
	"encoding/base64"
	"errors"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/fusevm/fuse/internal/fleet"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// ForwardPrefix is the path below which a host agent passes calls on to a
// guest as they are. What admits them travels in headers.
const ForwardPrefix = "/guest"

const (
	fenceHeader = "Fuse-Fence"
	refHeader   = "Fuse-Ref"
	// refusedHeader marks a refusal as the host's own: who owns the guest can
	// make it answer anything, but headers of this kind do not come through.
	refusedHeader = "Fuse-Refused-By"
)

// SetForward says in a call's headers who leads and which life is meant.
func SetForward(h http.Header, fence *hostwirev1.Fence, ref *hostwirev1.Ref) error {
	for name, m := range map[string]proto.Message{fenceHeader: fence, refHeader: ref} {
		raw, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		h.Set(name, base64.RawStdEncoding.EncodeToString(raw))
	}
	return nil
}

// ForwardOf reads what SetForward said.
func ForwardOf(h http.Header) (*hostwirev1.Fence, *hostwirev1.Ref, error) {
	fence, ref := &hostwirev1.Fence{}, &hostwirev1.Ref{}
	for name, m := range map[string]proto.Message{fenceHeader: fence, refHeader: ref} {
		raw, err := base64.RawStdEncoding.DecodeString(h.Get(name))
		if err == nil {
			err = proto.Unmarshal(raw, m)
		}
		if err != nil || len(raw) == 0 {
			return nil, nil, fleet.Errorf(fleet.CodeInvalidArgument, "the call to a guest does not say which")
		}
	}
	return fence, ref, nil
}

// RefuseForward answers a call for a guest with the host's own error.
func RefuseForward(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set(refusedHeader, "host")
	errs := connect.NewErrorWriter()
	if errs.IsSupported(r) {
		_ = errs.Write(w, r, ToConnect(err)) // fails only if the caller is gone
		return
	}
	http.Error(w, err.Error(), http.StatusBadRequest)
}

// RefusedByHost reports whether an error of a forwarded call is the host's own.
func RefusedByHost(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && ce.Meta().Get(refusedHeader) == "host"
}
