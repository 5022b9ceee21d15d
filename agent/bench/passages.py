"""Short texts about different things, to put before a question: some 80 to 130 tokens each."""

from __future__ import annotations

PASSAGES = (
    "The lighthouse on the northern cape was built in 1871 from granite that came by barge. Its lamp burned oil "
    "until 1932, when a cable was laid from the mainland. Three families lived in the houses beside it, and each "
    "kept one watch of eight hours. In fog they rang a bell by hand, twice a minute, for as long as it took; the "
    "longest night on record lasted thirty-one hours. Since 1988 the light has been run from a desk forty "
    "kilometres away.",
    "To make bread with a sour starter, feed the starter the evening before with equal weights of flour and "
    "water. In the morning mix 500 g of flour, 350 g of water, 100 g of starter and 10 g of salt. Fold the dough "
    "four times in the first two hours, then let it rest until it has grown by half. Shape it, cool it overnight,"
    " and bake it at 240 degrees for twenty minutes under a lid and twenty-five without.",
    "def merge(left, right):\n"
    "    out = []\n"
    "    i = j = 0\n"
    "    while i < len(left) and j < len(right):\n"
    "        if left[i] <= right[j]:\n"
    "            out.append(left[i])\n"
    "            i += 1\n"
    "        else:\n"
    "            out.append(right[j])\n"
    "            j += 1\n"
    "    return out + left[i:] + right[j:]",
    "Minutes of the tenants' meeting, 14 March. Present: eleven of sixteen households. The boiler was repaired in"
    " February for 2,340 euros, which the reserve covers. Mr Okafor asks for a rack for bicycles in the yard; "
    "five are in favour, two against, the others want to see a drawing first. The stairs are to be painted in "
    "June. Next meeting on the second Thursday in May, at seven in the evening, in the laundry room.",
    "A heat pump moves heat instead of making it. A fluid that boils far below zero takes warmth from the air "
    "outside, a compressor squeezes the vapour until it is hot, and the house cools it until it is liquid again. "
    "For one unit of electricity it brings in three or four units of heat, fewer when it is very cold. That is "
    "why the water in the radiators should be no hotter than needed, and the radiators large.",
    "Dear Ms Lindqvist, thank you for your order of 3 April. Of the twelve chairs, nine left our workshop "
    "yesterday and will be with you on Friday between eight and noon. The other three have a flaw in the varnish "
    "that we would rather correct than send; they will follow in two weeks, at our cost. Should you prefer to "
    "wait and have all of them together, a short answer by tomorrow evening is enough.",
    "Swifts spend most of their lives in the air. They eat, drink and even sleep there, rising to two thousand "
    "metres in the evening and gliding down in slow circles. A young bird that leaves the nest in July may not "
    "touch anything solid until it breeds, two or three years later. Ringed birds have lived for twenty-one "
    "years; in that time they will have flown several million kilometres.",
    "date,station,min,max,rain\n"
    "2023-01-01,Ulm,4.1,12.8,0.0\n"
    "2023-01-02,Ulm,3.0,9.4,2.2\n"
    "2023-01-03,Ulm,-0.6,5.1,0.4\n"
    "2023-01-04,Ulm,1.9,8.8,6.1",
)
