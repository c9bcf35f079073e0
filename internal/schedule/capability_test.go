package schedule_test

import (
	"errors"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/schedule"
)

func TestOnlyAHostThatCanIsAsked(t *testing.T) {
	able := host("b")
	able.Facts.Capabilities = []string{fleet.CapLimits, fleet.CapServiceImages}
	half := host("a")
	half.Facts.Capabilities = []string{fleet.CapLimits}
	spec := fleet.Spec{CPUs: 1, RamMB: 512, ServiceImages: []string{"db"}, Limits: fleet.ResourceLimits{CPUMillis: 500}}
	p, err := schedule.Place(schedule.Input{Spec: spec, Hosts: []*fleet.Host{half, able}})
	if err != nil || p.Host == nil || p.Host.ID != "b" {
		t.Errorf("placed on %v, %v", p.Host, err)
	}
	_, err = schedule.Place(schedule.Input{Spec: spec, Hosts: []*fleet.Host{half}})
	var fe *fleet.Error
	if !errors.Is(err, fleet.ErrNoCapacity) || !errors.As(err, &fe) || fe.Details[fleet.DetailRemedy] == "" {
		t.Errorf("got %v", err)
	}
	if p, err = schedule.Place(schedule.Input{Spec: fleet.Spec{CPUs: 1, RamMB: 512}, Hosts: []*fleet.Host{host("c")}}); err != nil || p.Host == nil || p.Host.ID != "c" {
		t.Errorf("a host that lists nothing: %v, %v", p.Host, err)
	}
}
