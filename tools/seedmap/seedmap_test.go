package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheck(t *testing.T) {
	names := []string{"const:A", "type:T", "field:T.F"}
	exists := func(ref string) bool { return ref == "fleet.A" || ref == "fleet.T" || ref == "fleet.T.F" }
	const head = "# Page\n\n| what | name | place |\n| --- | --- | --- |\n"
	const good = "| const | `A` | `fleet.A` |\n| type | `T` | `fleet.T`, `fleet.A` (two) |\n"
	for _, tt := range []struct {
		name, page string
		want       counts
		bad        []string
	}{
		{"all placed", head + good + "| field | `T.F` | `fleet.T.F` |\n", counts{placed: 3}, nil},
		{"later and none", head + "| const | `A` | later: snapshots |\n| type | `T` | none: `fleet.A` does it |\n| field | `T.F` | `fleet.T.F` |\n",
			counts{placed: 1, later: 1, none: 1}, nil},
		{"missing", head + good, counts{placed: 2}, []string{"docs/reference/seed-map.md: no row for field T.F"}},
		{"twice", head + good + "| field | `T.F` | later: x |\n| const | `A` | later: x |\n", counts{placed: 2, later: 2},
			[]string{"docs/reference/seed-map.md:8: A is already on line 5"}},
		{"unknown to the seed", head + good + "| field | `T.F` | later: x |\n| func | `G` | later: x |\n", counts{placed: 2, later: 2},
			[]string{"docs/reference/seed-map.md:8: the seed has no func G"}},
		{"no such place", head + good + "| field | `T.F` | `fleet.T.G` |\n", counts{placed: 3},
			[]string{"docs/reference/seed-map.md:7: fleet.T.G does not exist"}},
		{"no place", head + good + "| field | `T.F` | somewhere |\n", counts{placed: 2},
			[]string{"docs/reference/seed-map.md:7: T.F has no place: name an identifier, or say later: or none:"}},
		{"unreadable", head + good + "| field | `T.F` | `fleet.T.F` |\n| field | T.F | |\n", counts{placed: 3},
			[]string{"docs/reference/seed-map.md:8: not a row of what, name and place"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, bad := check(rows(tt.page), names, exists)
			if got != tt.want {
				t.Errorf("counts = %+v, want %+v", got, tt.want)
			}
			if diff := cmp.Diff(tt.bad, bad); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDeclarations(t *testing.T) {
	got, err := declarations("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"fleet.ArchAMD64", "fleet.VM", "fleet.VM.UID", "fleet.Error.Unwrap", "fleet.NormalizeArch",
		"hostd/driver.Driver.Sweep", "hostd/network.Manager.Create", "tools/seedmap.run",
	} {
		if !got[want] {
			t.Errorf("%s is not found", want)
		}
	}
	if got["fleet.VM.Nothing"] || got["tools/seedmap.TestDeclarations"] {
		t.Error("found what is not there, or in a test")
	}
}

func TestThisTree(t *testing.T) {
	c, bad, err := run("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bad {
		t.Error(b)
	}
	if c.total() != 860 {
		t.Errorf("%d names, the seed has 860", c.total())
	}
}
