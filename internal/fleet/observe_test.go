package fleet

import "testing"

// Absence can be read from a complete look only: the first promise rests on it.
func TestOnlyACompleteLookListsVMs(t *testing.T) {
	look := Look{HostID: "h", ID: "l1", Revision: 7}
	for _, o := range []Observation{NotSeen(look, "refused"), SeenPartial(look, "adopting"), {}} {
		if vms, ok := o.VMs(); ok || vms != nil {
			t.Errorf("%s look lists %v", o.Quality(), vms)
		}
		if exits, ok := o.Exits(); ok || exits != nil {
			t.Errorf("%s look lists exits %v", o.Quality(), exits)
		}
	}
	o := SeenComplete(look, nil, nil, 2)
	if vms, ok := o.VMs(); !ok || len(vms) != 0 {
		t.Errorf("complete empty look: %v %v", vms, ok)
	}
	if o.HostID != "h" || o.Revision != 7 || o.Foreign != 2 {
		t.Errorf("look fields lost: %+v", o)
	}
}

func TestZeroObservationIsUnseen(t *testing.T) {
	var o Observation
	if o.Quality() != Unseen {
		t.Errorf("zero observation is %s", o.Quality())
	}
}
