"""The gateway of a service (`task: service`): accepts what clients ask for, writes it down, and has the ranks and the rollout servers do it.

It outlives the ranks: clients submit and wait while an attempt ends and the next one begins. `wire/` is all that knows the clients' protocol; it
speaks HTTP, and turns bodies into the messages of rljob_trainer/wire/service.py.

    client --HTTP--> wire/ --> GatewayService --journal--> RequestLine (one for each model)
                                  ^                     | next piece of work
                                  +------- driver <-----+        (main.py: the driver asks, as gangs ask a driver)

Each request of a model has a number. It is in the journal before it is answered, and the ranks get requests in the order of their numbers. The ranks
keep nothing: with a new attempt, or a new gateway, an *epoch* begins, in which every model is created again, loads its newest checkpoint, and
repeats the requests after that one. So every request counts once, whatever crashed; results that a client can fetch already are compared with those
of the repetition.
"""
