package hostd_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

// A call into a guest that comes before a new agent has taken hold of it waits for
// that; behind a guest that hangs it is refused in the end, as one to repeat.
func TestEarlyCallsWaitForTheAdoption(t *testing.T) {
	for name, c := range map[string]struct {
		adopts, waits time.Duration
		status        int
		says          string
	}{
		"soon": {3 * time.Second, 3 * time.Second, http.StatusOK, ""},
		"late": {20 * time.Second, 10 * time.Second, http.StatusBadRequest, "unadopted"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
				vm := ref("vm", "u1")
				r.mustCreate(vm)
				r.restart(sim.Options{Delay: map[string]sim.Range{"adopt": {Min: c.adopts, Max: c.adopts}}})
				body, err := proto.Marshal(&hostwirev1.WriteFilesRequest{
					Fence: &hostwirev1.Fence{FleetId: leader.FleetID, Term: leader.Term, ClaimToken: leader.ClaimToken, StoreFingerprint: leader.Fingerprint},
					Ref:   &hostwirev1.Ref{VmId: vm.VMID, Uid: vm.UID, Generation: vm.Generation, OperationId: "write"},
					Files: []*hostwirev1.File{{Path: "/x", Data: []byte("x")}},
				})
				if err != nil {
					t.Fatal(err)
				}
				req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, hostwirev1connect.GuestWriteFilesProcedure, bytes.NewReader(body))
				req.Header.Set("Authorization", "Bearer "+r.cfg.Token)
				req.Header.Set("Content-Type", "application/proto")
				req.Header.Set(hostwire.VersionHeader, strconv.Itoa(hostwire.WireVersion))
				w, began := httptest.NewRecorder(), time.Now()
				r.Handler().ServeHTTP(w, req)
				if took := time.Since(began); w.Code != c.status || took != c.waits || !strings.Contains(w.Body.String(), c.says) {
					t.Errorf("after %v: %d %s, want %d after %v", took, w.Code, w.Body, c.status, c.waits)
				}
				elapse(time.Minute)
				r.mustDestroy(vm)
			})
		})
	}
}
