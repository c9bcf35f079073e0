package fake_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/fake"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestProvider(t *testing.T) {
	providertest.Run(t, func(*testing.T) providertest.Harness {
		h := fake.New(fake.Options{})
		return providertest.Harness{
			Spec:    fleet.Spec{CPUs: 1, RamMB: 128, StorageGB: 1, Image: "minimal"},
			Connect: func(f provider.Fencer) provider.Provider { return h.Provider(f) },
			LoseAnswer: func(provider.Provider) {
				// The suite loses the answer of its next change, whichever it is.
				if len(h.UIDs()) == 0 {
					h.LoseAnswer(fake.Create)
				} else {
					h.LoseAnswer(fake.Destroy)
				}
			},
			SlowCreate: func() func() {
				h.Latency(fake.Create, time.Second)
				return func() {}
			},
		}
	})
}

func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fake.New(fake.Options{})
		p := h.Provider(providertest.NewFleet())
		ref := provider.Ref{ID: "vm", UID: "u1", Generation: 1, OpID: "op"}
		req := provider.CreateRequest{Ref: ref, Spec: fleet.Spec{CPUs: 1, RamMB: 1}}

		refused := errors.New("refused")
		h.Fail(fake.Create, refused)
		if _, err := p.Create(t.Context(), req); !errors.Is(err, refused) || len(h.UIDs()) != 0 {
			t.Errorf("refused create: %v, on the host %v", err, h.UIDs())
		}
		h.Latency(fake.Create, time.Hour)
		begun := time.Now()
		if _, err := p.Create(t.Context(), req); err != nil || time.Since(begun) != time.Hour {
			t.Errorf("slow create: %v after %v", err, time.Since(begun))
		}
		h.SetComplete(false, "adopting")
		if l, err := p.List(t.Context()); err != nil || l.Complete || l.Reason != "adopting" || l.VMs != nil {
			t.Errorf("partial listing: %+v, %v", l, err)
		}
		h.SetComplete(true, "")
		if !h.Stop("u1", "vmm_exited") {
			t.Error("the VM did not run")
		}
		l, err := p.List(t.Context())
		if err != nil || len(l.VMs) != 1 || l.VMs[0].Running || len(l.Exits) != 1 || l.Exits[0].Cause != "vmm_exited" {
			t.Errorf("after its end: %+v, %v", l, err)
		}
		if !h.Vanish("u1") || len(h.UIDs()) != 0 || h.Calls(fake.List) != 2 {
			t.Errorf("on the host %v, %d listings", h.UIDs(), h.Calls(fake.List))
		}
	})
}
